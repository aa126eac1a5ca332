//! What is wrong with rules.

use super::{MAX_KEY, MAX_LABELS, MAX_RULES};

/// What is wrong with a rule, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// There are too many.
    #[error(
        "there are {0} rules, and {MAX_RULES} are the most: let one expression match several VMMs, as (db|web)"
    )]
    TooMany(usize),
    /// Any guest would be meant.
    #[error(
        "rule {rule} has neither command_line nor cgroup: give one, a regular expression for the VMMs that it is for"
    )]
    NoExpression {
        /// The number of the rule, from 1; as in all others.
        rule: usize,
    },
    /// It says nothing.
    #[error("rule {rule} has neither name nor labels: give one")]
    SaysNothing {
        /// The rule.
        rule: usize,
    },
    /// A text is empty or too long.
    #[error("rule {rule}: {key} has {length} bytes: it has to have 1 to {most}")]
    Length {
        /// The rule.
        rule: usize,
        /// The text's key.
        key: String,
        /// Its length.
        length: usize,
        /// The longest one.
        most: usize,
    },
    /// A text isn't a regular expression, or too large a one.
    #[error(
        "rule {rule}: {key} is no regular expression: {why}; \\ before a character such as ( or + takes it literally"
    )]
    NotAnExpression {
        /// The rule.
        rule: usize,
        /// The text's key.
        key: &'static str,
        /// Why.
        why: String,
    },
    /// Two groups have the same name.
    #[error("rule {rule}: command_line and cgroup have a group {group} each: rename one")]
    SameGroup {
        /// The rule.
        rule: usize,
        /// Its name.
        group: String,
    },
    /// A dollar sign is followed by something else.
    #[error(
        "rule {rule}: {key} has a $ that isn't the start of ${{GROUP}}: write $$ for a dollar sign"
    )]
    Dollar {
        /// The rule.
        rule: usize,
        /// The text's key.
        key: String,
    },
    /// A text refers to an unknown group.
    #[error(
        "rule {rule}: {key} has ${{{group}}}, and no expression of the rule has such a group: write (?<{group}>...) around what it is to match"
    )]
    NoGroup {
        /// The rule.
        rule: usize,
        /// The text's key.
        key: String,
        /// The group.
        group: String,
    },
    /// A number may be that of a group of either expression.
    #[error(
        "rule {rule}: {key} has ${{{group}}}, and the rule has two expressions: give the group a name by (?<name>...), and write ${{name}}"
    )]
    Ambiguous {
        /// The rule.
        rule: usize,
        /// The text's key.
        key: String,
        /// The number.
        group: String,
    },
    /// There are too many labels.
    #[error("rule {rule} has {count} labels, and {MAX_LABELS} are the most")]
    TooManyLabels {
        /// The rule.
        rule: usize,
        /// How many.
        count: usize,
    },
    /// A label's key isn't allowed.
    #[error(
        "rule {rule}: labels: {key}: a label's name has letters a to z, digits and _, and at most {MAX_KEY} of them"
    )]
    Key {
        /// The rule.
        rule: usize,
        /// The key.
        key: String,
    },
}
