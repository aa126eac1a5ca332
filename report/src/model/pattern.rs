//! Regular expressions of the command line.

use std::fmt;
use std::str::FromStr;

use regex_lite::{Regex, RegexBuilder};

/// Maximum length of an expression, in bytes.
const LONGEST: usize = 1000;
/// Maximum size of a compiled expression, in bytes: a short one can have millions of repetitions.
const LARGEST: usize = 1 << 20;

/// A regular expression for names of functions, in the syntax of the crate `regex_lite`. It matches in time linear in the length of
/// a name.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

/// The text isn't a valid [`Pattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAPattern {
    /// It is empty.
    #[error("a regular expression is wanted, such as ^copy_ or read|write")]
    Empty,
    /// It is too long.
    #[error("a regular expression has at most {LONGEST} bytes here")]
    Long,
    /// It isn't an expression, or too large a one.
    #[error("no regular expression: {0}; \\ before a character such as ( or + takes it literally")]
    Wrong(String),
}

impl FromStr for Pattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        match text.len() {
            0 => return Err(NotAPattern::Empty),
            length if length > LONGEST => return Err(NotAPattern::Long),
            _ => {}
        }
        let built = RegexBuilder::new(text).size_limit(LARGEST).build();
        built
            .map(Self)
            .map_err(|error| NotAPattern::Wrong(error.to_string()))
    }
}

impl Pattern {
    /// Whether it matches any part of `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_str())
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_parts_of_names() {
        let pattern: Pattern = "^(copy|walk)_".parse().unwrap();
        assert!(pattern.matches("copy_page") && pattern.matches("walk_tree"));
        assert!(!pattern.matches("do_copy_page") && !pattern.matches("Copy_page"));
        assert!("(?i)PAGE$".parse::<Pattern>().unwrap().matches("copy_page"));
    }

    #[test]
    fn wrong_and_too_large_patterns_are_refused() {
        let refused = |text: &str| text.parse::<Pattern>().unwrap_err().to_string();
        assert!(refused("").contains("such as"));
        assert!(refused("operator(").contains("no regular expression"));
        assert!(refused("a{1000}{1000}{1000}").contains("no regular expression"));
        assert!(refused(&"(".repeat(900)).contains("no regular expression"));
        assert!(refused(&"a".repeat(2000)).contains("1000 bytes"));
    }
}
