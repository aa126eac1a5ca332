//! Numbers values in the order of their first occurrence.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Different values, each with a number from 0. Each value is in memory once.
#[derive(Clone, Debug)]
pub struct Table<T> {
    values: Vec<T>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashTable::new(),
            hasher: RandomState::default(),
        }
    }
}

impl<T> Table<T> {
    /// The number of values.
    pub fn length(&self) -> usize {
        self.values.len()
    }

    /// The value with this number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)
    }

    /// The values, by number.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The values, by number.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }
}

impl<T: Eq + Hash> Table<T> {
    /// The number of `value`, if it is known.
    pub fn find<Q: Eq + Hash + ?Sized>(&self, value: &Q) -> Option<u32>
    where
        T: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(value);
        let is_same = |number: &u32| self.values[*number as usize].borrow() == value;
        self.numbers.find(hash, is_same).copied()
    }

    /// The number of `value`, which is added if it is new.
    pub fn number(&mut self, value: T) -> u32 {
        let known = self.find::<T>(&value);
        known.unwrap_or_else(|| self.push(value))
    }

    /// Adds `value`, which isn't known yet.
    pub fn push(&mut self, value: T) -> u32 {
        // Values take more than a byte each: memory is full long before.
        let number = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        let hash = self.hasher.hash_one(&value);
        self.values.push(value);
        let (values, hasher) = (&self.values, &self.hasher);
        (self.numbers).insert_unique(hash, number, |number| {
            hasher.hash_one(&values[*number as usize])
        });
        number
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn numbers_are_stable() {
        let mut names: Table<Arc<str>> = Table::default();
        assert_eq!(names.number("b".into()), 0);
        assert_eq!(names.number("a".into()), 1);
        assert_eq!(names.number("b".into()), 0);
        assert_eq!((names.find("a"), names.find("c")), (Some(1), None));
        let many: Vec<u32> = (0..1000)
            .map(|n| names.number(format!("{n}").into()))
            .collect();
        assert_eq!(many, (2..1002).collect::<Vec<_>>());
        assert_eq!(names.get(7).map(|name| &**name), Some("5"));
    }
}
