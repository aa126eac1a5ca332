//! What a host's administrator calls guests: rules with regular expressions for their VMMs' command lines and control groups.
//!
//! Whoever starts a VMM chooses its command line: lengths and work are bounded, whatever is there.

mod error;
mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use error::RuleError;
use template::{Expressions, Template};

use super::{Machine, origin, processes};

/// The most rules, and the most labels of one.
const MAX_RULES: usize = 32;
const MAX_LABELS: usize = 8;
/// Maximum length of a label's key, in bytes.
const MAX_KEY: usize = 64;
/// Maximum number of bytes of a command line that are compared.
const MAX_COMPARED: usize = 16 << 10;

/// A rule as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleText {
    /// The expression for the command line, its arguments with blanks between them; `None` if any command line is meant.
    pub command_line: Option<String>,
    /// The expression for the path of the control group on this host; `None` if any is meant.
    pub cgroup: Option<String>,
    /// The guest's name, in which `${GROUP}` is what that group of an expression has matched, and `$$` a dollar sign.
    pub name: Option<String>,
    /// The guest's labels by their keys, with values of the same form.
    pub labels: BTreeMap<String, String>,
}

/// Rules for the names and labels of guests, the first ones before others. The default has none.
#[derive(Clone, Debug, Default)]
pub struct NameRules(Vec<Rule>);

/// What a rule says of a guest. The guest's user may have chosen parts of it: escape them before they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Its name; `None` if the rule has none for it.
    pub name: Option<String>,
    /// Its labels, by their keys.
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct Rule {
    expressions: Expressions,
    name: Option<Template>,
    labels: Vec<(String, Template)>,
}

impl NameRules {
    /// The rules of these `texts`.
    ///
    /// # Errors
    /// The first one that is wrong.
    pub fn new(texts: &[RuleText]) -> Result<Self, RuleError> {
        if texts.len() > MAX_RULES {
            return Err(RuleError::TooMany(texts.len()));
        }
        let rules = (1..).zip(texts);
        let rules = rules.map(|(number, text)| Rule::new(number, text));
        Ok(Self(rules.collect::<Result<_, _>>()?))
    }

    /// What the first rule says that matches the VMM of `machine`; `None` if none does, or the VMM has ended.
    pub fn of(&self, machine: &Machine) -> Option<Named> {
        if self.0.is_empty() {
            return None;
        }
        let command_line = processes::command_line(machine.pid);
        let groups = processes::groups(machine.pid);
        // Another process may have the pid by now.
        if processes::start_time(machine.pid) != Some(machine.start_time) {
            return None;
        }
        let groups = String::from_utf8_lossy(&groups);
        self.find(&shown(&command_line), origin::group_of(&groups))
    }

    /// What the first rule says that matches this command line, as [`shown`] makes it, and this control group.
    fn find(&self, command_line: &str, group: &str) -> Option<Named> {
        let texts = [command_line, group];
        self.0.iter().find_map(|rule| rule.find(texts))
    }
}

/// A command line as rules compare it: the arguments, each of which `bytes` has with a NUL behind it, with blanks between them.
fn shown(bytes: &[u8]) -> String {
    let bytes = bytes.get(..MAX_COMPARED).unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes).replace('\0', " ");
    text.trim_end().to_owned()
}

impl Rule {
    fn new(rule: usize, text: &RuleText) -> Result<Self, RuleError> {
        if text.name.is_none() && text.labels.is_empty() {
            return Err(RuleError::SaysNothing { rule });
        }
        let count = text.labels.len();
        if count > MAX_LABELS {
            return Err(RuleError::TooManyLabels { rule, count });
        }
        let expressions = Expressions::new(rule, text)?;
        let template = |key: &str, text: &str| expressions.template(rule, key, text);
        let name = text.name.as_deref().map(|name| template("name", name));
        let labels = text.labels.iter().map(|(key, value)| {
            if !is_key(key) {
                let key = key.chars().take(MAX_KEY).collect();
                return Err(RuleError::Key { rule, key });
            }
            let value = template(&format!("labels.{key}"), value)?;
            Ok((key.clone(), value))
        });
        let labels = labels.collect::<Result<_, _>>()?;
        Ok(Self {
            name: name.transpose()?,
            labels,
            expressions,
        })
    }

    /// What it says, if its expressions match these texts.
    fn find(&self, texts: [&str; 2]) -> Option<Named> {
        let found = self.expressions.find(texts)?;
        // A text that would be empty isn't said.
        let fill =
            |template: &Template| Some(template.fill(&found)).filter(|text| !text.is_empty());
        let labels = self.labels.iter();
        Some(Named {
            name: self.name.as_ref().and_then(fill),
            labels: labels
                .filter_map(|(key, value)| Some((key.clone(), fill(value)?)))
                .collect(),
        })
    }
}

/// Whether `key` can be a label's, as in all programs that get it.
fn is_key(key: &str) -> bool {
    let begins = key
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_lowercase());
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    begins && key.len() <= MAX_KEY && key.bytes().all(is_plain)
}
