//! Shares equal values: a program that reads the recordings of hundreds of guests finds the same kernels and files in each.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Number of entries at which unused ones are removed for the first time.
const FIRST_PURGE: usize = 1024;

/// The values of a type that are in use.
pub struct Shared<T> {
    hasher: RandomState,
    known: Mutex<SharedEntry<T>>,
}

struct SharedEntry<T> {
    /// The values by their hash.
    values: HashMap<u64, Vec<Weak<T>>>,
    next_purge: usize,
}

impl<T: Eq + Hash> Shared<T> {
    /// No values.
    pub fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            known: Mutex::new(SharedEntry {
                values: HashMap::new(),
                next_purge: FIRST_PURGE,
            }),
        }
    }

    /// `value`, or the equal one that is in use already.
    pub fn get(&self, value: T) -> Arc<T> {
        let hash = self.hasher.hash_one(&value);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known.values.get(&hash).and_then(|values| {
            let mut values = values.iter().filter_map(Weak::upgrade);
            values.find(|known| **known == value)
        });
        if let Some(same) = same {
            return same;
        }
        if known.values.len() >= known.next_purge {
            known.values.retain(|_, values| {
                values.retain(|value| value.strong_count() > 0);
                !values.is_empty()
            });
            known.next_purge = FIRST_PURGE.max(2 * known.values.len());
        }
        let value = Arc::new(value);
        let values = known.values.entry(hash).or_default();
        values.push(Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_in_use_are_shared() {
        let shared = Shared::new();
        let one = shared.get("one".to_owned());
        assert!(Arc::ptr_eq(&one, &shared.get("one".to_owned())));
        assert!(!Arc::ptr_eq(&one, &shared.get("two".to_owned())));
        for number in 0..10 * FIRST_PURGE {
            shared.get(number.to_string());
        }
        let known = shared.known.lock().unwrap().values.len();
        assert!(known <= 2 * FIRST_PURGE, "{known}");
        assert!(Arc::ptr_eq(&one, &shared.get("one".to_owned())));
    }
}
