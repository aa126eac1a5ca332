//! Warnings about sources of names.

use std::cell::RefCell;

/// Maximum number of warnings that are kept: a recording can name any number of files.
const MAX_NOTES: usize = 64;

/// Warnings about sources that were not used, each once.
#[derive(Debug, Default)]
pub struct Notes(RefCell<Vec<String>>);

impl Notes {
    /// Adds `note` if it is new.
    pub fn add(&self, note: String) {
        let mut notes = self.0.borrow_mut();
        if notes.len() < MAX_NOTES && !notes.contains(&note) {
            notes.push(note);
            if notes.len() == MAX_NOTES {
                notes.push("Further warnings about files are left out".to_owned());
            }
        }
    }

    /// The warnings so far. They are removed.
    pub fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_bounded_with_a_note() {
        let notes = Notes::default();
        for number in 0..1000 {
            notes.add(format!("file {}", number / 2));
        }
        let taken = notes.take();
        assert_eq!(taken.len(), MAX_NOTES + 1);
        assert_eq!(taken[1], "file 1");
        assert!(taken[MAX_NOTES].contains("left out"));
        assert!(notes.take().is_empty());
    }
}
