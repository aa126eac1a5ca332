//! What recipes find.

use std::collections::BTreeMap;

use crate::image::types::{Members, SIZE};

/// Maximum offset of a member, in bytes.
const MAX_OFFSET: u64 = 1 << 16;

/// What recipes have found. `None` for a value about which they disagree.
#[derive(Debug, Default)]
pub struct Findings {
    members: BTreeMap<(&'static str, &'static str), Option<u64>>,
    variables: BTreeMap<&'static str, Option<u64>>,
}

impl Findings {
    /// Adds that `member` of `structure` is at `offset`, in bytes.
    pub fn add_member(&mut self, structure: &'static str, member: &'static str, offset: u64) {
        if offset < MAX_OFFSET {
            vote(&mut self.members, (structure, member), offset);
        }
    }

    /// Adds that `structure` has `size` bytes.
    pub fn add_size(&mut self, structure: &'static str, size: u64) {
        self.add_member(structure, SIZE, size);
    }

    /// Adds that the variable `name` has the link-time address `address`.
    pub fn add_variable(&mut self, name: &'static str, address: u64) {
        vote(&mut self.variables, name, address);
    }

    /// The offset of `member`, in bytes, as far as it was found until now.
    pub fn member(&self, structure: &'static str, member: &'static str) -> Option<u64> {
        self.members.get(&(structure, member)).copied().flatten()
    }

    /// All members.
    pub fn members(&self) -> Members {
        let known = self.members.iter();
        known
            .filter_map(|(member, offset)| Some((*member, (*offset)?)))
            .collect()
    }

    /// All variables.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let known = self.variables.iter();
        known.filter_map(|(name, address)| Some((*name, (*address)?)))
    }
}

fn vote<K: Ord>(votes: &mut BTreeMap<K, Option<u64>>, key: K, value: u64) {
    let known = votes.entry(key).or_insert(Some(value));
    if *known != Some(value) {
        *known = None;
    }
}
