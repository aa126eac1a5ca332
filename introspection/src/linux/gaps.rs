//! What isn't known of a kernel, and why.

use crate::image::types::Missing;

/// What isn't known of a kernel.
#[derive(Debug)]
pub struct Gaps {
    /// Why there is no BTF; `None` if there is one.
    without_types: Option<String>,
    lines: Vec<String>,
}

impl Gaps {
    /// No gaps yet. `without_types` says why the kernel's types aren't known from BTF.
    pub fn new(without_types: Option<String>) -> Self {
        Self {
            without_types,
            lines: Vec::new(),
        }
    }

    /// The gaps, a sentence each.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Adds that `what` isn't known, because of `why`.
    pub fn add(&mut self, what: &str, why: &str) {
        self.lines.push(format!("No {what}: {why}"));
    }

    /// Adds that `what` isn't known if `found` is an error.
    pub fn check<T>(&mut self, what: &str, found: &Result<T, Missing>) {
        let Err(missing) = found else {
            return;
        };
        let why = match (missing, &self.without_types) {
            (Missing::Symbol(_), _) => {
                "neither the kernel's symbol table nor its code tells it".to_owned()
            }
            (_, Some(reason)) => format!("{reason}, and the kernel's code doesn't tell it"),
            (_, None) => "the kernel's BTF doesn't have it".to_owned(),
        };
        self.add(what, &format!("{missing} isn't known ({why})"));
    }

    /// What was `found`. Adds that `what` isn't known if that is an error.
    pub fn keep<T>(&mut self, what: &str, found: Result<T, Missing>) -> Option<T> {
        self.check(what, &found);
        found.ok()
    }
}
