//! Numbers items in the order of their first occurrence.

use std::collections::HashMap;
use std::hash::Hash;

use super::ExportError;

/// Items, each with a number from 0.
#[derive(Debug)]
pub struct Interned<T> {
    what: &'static str,
    numbers: HashMap<T, u32>,
}

impl<T: Eq + Hash> Interned<T> {
    /// No items yet; `what` names them in error messages.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            numbers: HashMap::new(),
        }
    }

    /// The number of `thing`, and whether it is new.
    ///
    /// # Errors
    /// There are more than 2^32 items.
    pub fn number(&mut self, thing: T) -> Result<(u32, bool), ExportError> {
        let next = u32::try_from(self.numbers.len());
        match self.numbers.get(&thing) {
            Some(number) => Ok((*number, false)),
            None => {
                let next = next.map_err(|_| ExportError::TooMany(self.what))?;
                self.numbers.insert(thing, next);
                Ok((next, true))
            }
        }
    }

    /// All items, ordered by number.
    pub fn into_ordered(self) -> Vec<T> {
        let mut things: Vec<(T, u32)> = self.numbers.into_iter().collect();
        things.sort_by_key(|(_, number)| *number);
        things.into_iter().map(|(thing, _)| thing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay() {
        let mut names = Interned::new("names");
        assert_eq!(names.number("b").unwrap(), (0, true));
        assert_eq!(names.number("a").unwrap(), (1, true));
        assert_eq!(names.number("b").unwrap(), (0, false));
        assert_eq!(names.into_ordered(), ["b", "a"]);
    }
}
