//! The expressions of a rule, and texts with parts that they fill in.

use regex_lite::{Captures, Regex, RegexBuilder};

use super::{RuleError, RuleText};
use crate::machines::name::{MAX_NAME, text};

/// Maximum length of an expression, in bytes.
const MAX_EXPRESSION: usize = 1000;
/// Maximum size of a compiled expression, in bytes: a short one can have millions of repetitions.
const MAX_COMPILED: usize = 1 << 16;

/// The expressions for the command line and for the control group.
#[derive(Clone, Debug)]
pub struct Expressions([Option<Regex>; 2]);

/// A text with parts that are filled in.
#[derive(Clone, Debug)]
pub struct Template(Vec<TemplatePart>);

#[derive(Clone, Debug)]
enum TemplatePart {
    Text(String),
    /// What this group of one of the two expressions has matched.
    Group {
        expression: usize,
        group: usize,
    },
}

/// What each of the expressions has found in its text.
pub type RuleCaptures<'t> = [Option<Captures<'t>>; 2];

impl Expressions {
    /// The expressions of rule number `rule`.
    ///
    /// # Errors
    /// An expression is invalid, or the rule has none.
    pub fn new(rule: usize, text: &RuleText) -> Result<Self, RuleError> {
        let compiled = |key: &'static str, text: Option<&String>| {
            let Some(text) = text else {
                return Ok(None);
            };
            check_length(rule, key, text, MAX_EXPRESSION)?;
            let built = RegexBuilder::new(text).size_limit(MAX_COMPILED).build();
            built.map(Some).map_err(|error| {
                let why = error.to_string();
                RuleError::NotAnExpression { rule, key, why }
            })
        };
        let both = Self([
            compiled("command_line", text.command_line.as_ref())?,
            compiled("cgroup", text.cgroup.as_ref())?,
        ]);
        let twice = match &both.0 {
            [None, None] => return Err(RuleError::NoExpression { rule }),
            [Some(one), Some(other)] => {
                let mut names = one.capture_names().flatten();
                let twice = names.find(|name| place_of(other, name).is_some());
                twice.map(str::to_owned)
            }
            _ => None,
        };
        match twice {
            Some(group) => Err(RuleError::SameGroup { rule, group }),
            None => Ok(both),
        }
    }

    /// What they find in the command line and in the path of the control group; `None` if one doesn't match.
    pub fn find<'t>(&self, texts: [&'t str; 2]) -> Option<RuleCaptures<'t>> {
        let mut found = [None, None];
        let all = self.0.iter().zip(texts).zip(&mut found);
        for ((expression, text), found) in all {
            if let Some(expression) = expression {
                *found = Some(expression.captures(text)?);
            }
        }
        Some(found)
    }

    /// The template in the `text` called `key` of rule number `rule`.
    ///
    /// # Errors
    /// The text isn't a template, or refers to an unknown group.
    pub fn template(&self, rule: usize, key: &str, text: &str) -> Result<Template, RuleError> {
        check_length(rule, key, text, MAX_NAME)?;
        let key = || key.to_owned();
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            parts.push(TemplatePart::Text(before.to_owned()));
            if let Some(behind) = behind.strip_prefix('$') {
                parts.push(TemplatePart::Text("$".to_owned()));
                rest = behind;
                continue;
            }
            let group = behind
                .strip_prefix('{')
                .and_then(|behind| behind.split_once('}'));
            let (group, behind) = group.ok_or_else(|| RuleError::Dollar { rule, key: key() })?;
            let (expression, group) = self.group(group).map_err(|is_ambiguous| {
                let (key, group) = (key(), group.to_owned());
                match is_ambiguous {
                    true => RuleError::Ambiguous { rule, key, group },
                    false => RuleError::NoGroup { rule, key, group },
                }
            })?;
            parts.push(TemplatePart::Group { expression, group });
            rest = behind;
        }
        parts.push(TemplatePart::Text(rest.to_owned()));
        Ok(Template(parts))
    }

    /// The expression with the group of this name or number, and the number.
    ///
    /// # Errors
    /// There is no such group; true if `name` is a number and there are two expressions.
    fn group(&self, name: &str) -> Result<(usize, usize), bool> {
        let mut all = (0..).zip(&self.0);
        let number: Option<usize> = name.parse().ok();
        if number.is_some() && self.0.iter().all(Option::is_some) {
            return Err(true);
        }
        let found = all.find_map(|(index, expression)| {
            let expression = expression.as_ref()?;
            let numbered = number.filter(|number| *number < expression.captures_len());
            Some((index, numbered.or_else(|| place_of(expression, name))?))
        });
        found.ok_or(false)
    }
}

/// The number of the group called `name`.
fn place_of(expression: &Regex, name: &str) -> Option<usize> {
    let mut names = expression.capture_names();
    names.position(|own| own == Some(name))
}

impl Template {
    /// The text, cut to the maximum length of names, with the groups that both expressions have found.
    pub fn fill(&self, found: &RuleCaptures<'_>) -> String {
        let mut filled = String::new();
        for part in &self.0 {
            filled.push_str(match part {
                TemplatePart::Text(text) => text,
                TemplatePart::Group { expression, group } => {
                    let found = found.get(*expression).and_then(Option::as_ref);
                    let group = found.and_then(|found| found.get(*group));
                    group.map_or("", |group| group.as_str())
                }
            });
        }
        text(filled.as_bytes())
    }
}

fn check_length(rule: usize, key: &str, text: &str, most: usize) -> Result<(), RuleError> {
    let length = text.len();
    if (1..=most).contains(&length) {
        return Ok(());
    }
    Err(RuleError::Length {
        rule,
        key: key.to_owned(),
        length,
        most,
    })
}
