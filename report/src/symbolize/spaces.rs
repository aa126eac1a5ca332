//! The mappings of each address space over time.

use std::collections::HashMap;
use std::sync::Arc;

use kvmprof_recording::file::{Mapping, ProcessMappings, address_space_key};

/// Maximum number of other processes' mappings that a search skips: their page tables were in the same memory.
const MAX_OTHERS: usize = 256;

/// The mappings of an address space at a time. Equal sets of any processes are one set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappingSet(u32);

/// The time from which mappings are valid, their process, and their set.
#[derive(Clone, Copy, Debug)]
struct Since {
    time: u64,
    pid: i32,
    set: MappingSet,
}

/// The mappings of all address spaces.
#[derive(Clone, Debug)]
pub struct Spaces {
    /// The number of the first set, which has no mappings.
    first: u32,
    sets: Vec<Arc<[Mapping]>>,
    numbers: HashMap<Arc<[Mapping]>, MappingSet>,
    /// The mappings of each address space, in the order of time.
    spaces: HashMap<u64, Vec<Since>>,
    /// The last known name of each process's main thread.
    names: HashMap<i32, String>,
}

impl Default for Spaces {
    fn default() -> Self {
        Self {
            first: 0,
            sets: vec![Arc::default()],
            numbers: HashMap::new(),
            spaces: HashMap::new(),
            names: HashMap::new(),
        }
    }
}

impl Spaces {
    /// The mappings of a recording.
    pub fn new(all: &[ProcessMappings]) -> Self {
        let mut spaces = Self::default();
        for mappings in all {
            spaces.push(mappings);
        }
        for times in spaces.spaces.values_mut() {
            times.sort_by_key(|since| since.time);
        }
        spaces
    }

    /// Adds `mappings` to those of their address space.
    pub fn add(&mut self, mappings: &ProcessMappings) {
        self.push(mappings);
        let key = address_space_key(mappings.address_space);
        if let Some(times) = self.spaces.get_mut(&key)
            && !times.is_sorted_by_key(|since| since.time)
        {
            times.sort_by_key(|since| since.time);
        }
    }

    /// Appends `mappings` without sorting.
    fn push(&mut self, mappings: &ProcessMappings) {
        if !mappings.name.is_empty() {
            self.names.insert(mappings.pid, mappings.name.clone());
        }
        let key = address_space_key(mappings.address_space);
        let (time, pid) = (mappings.time, mappings.pid);
        let mut sorted = mappings.mappings.clone();
        sorted.retain(|mapping| mapping.begin < mapping.end);
        sorted.sort_by_key(|mapping| mapping.begin);
        let number = u32::try_from(self.sets.len()).ok();
        let number = number.and_then(|number| self.first.checked_add(number));
        let set = match (self.numbers.get(sorted.as_slice()), number) {
            (Some(set), _) => *set,
            (None, Some(number)) => {
                let sorted: Arc<[Mapping]> = sorted.into();
                self.sets.push(Arc::clone(&sorted));
                self.numbers.insert(sorted, MappingSet(number));
                MappingSet(number)
            }
            (None, None) => return,
        };
        let times = self.spaces.entry(key).or_default();
        times.push(Since { time, pid, set });
    }

    /// The last known name of the main thread of process `pid`.
    pub fn process_name(&self, pid: i32) -> Option<&str> {
        self.names.get(&pid).map(String::as_str)
    }

    /// Removes all mappings. Earlier results of [`Self::at`] are empty from now on.
    pub fn forget(&mut self) {
        let count = u32::try_from(self.sets.len()).unwrap_or(u32::MAX);
        *self = Self {
            first: self.first.saturating_add(count),
            ..Self::default()
        };
    }

    /// The mappings of process `pid` in `address_space` at `time`, in ns of CLOCK_MONOTONIC. A process is sampled
    /// before its mappings are read, so its first mappings also count for the time before.
    pub fn at(&self, address_space: u64, pid: i32, time: u64) -> MappingSet {
        let Some(times) = self.spaces.get(&address_space_key(address_space)) else {
            return MappingSet::default();
        };
        let (before, after) = times.split_at(times.partition_point(|since| since.time <= time));
        // The memory of page tables is reused, so the process's own mappings come first.
        let own = |since: &&Since| since.pid == pid;
        let found = before.iter().rev().take(MAX_OTHERS).find(own);
        let found = found.or_else(|| after.iter().take(MAX_OTHERS).find(own));
        let found = found.or_else(|| before.last());
        found.map_or(MappingSet::default(), |since| since.set)
    }

    /// The mappings of `set`, by their addresses.
    pub fn mappings(&self, set: MappingSet) -> &[Mapping] {
        let index = set.0.checked_sub(self.first);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let mappings = index.and_then(|index| self.sets.get(index));
        mappings.map_or(&[], |mappings| mappings)
    }

    /// The mapping that contains `address` in `set`.
    pub fn find(&self, set: MappingSet, address: u64) -> Option<&Mapping> {
        let mappings = self.mappings(set);
        let after = mappings.partition_point(|mapping| mapping.begin <= address);
        let mapping = mappings.get(after.checked_sub(1)?)?;
        (address < mapping.end).then_some(mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mappings(address_space: u64, pid: i32, time: u64, file: &str) -> ProcessMappings {
        let mapping = |begin, file: &str| Mapping {
            begin,
            end: begin + 0x1000,
            file: file.to_owned(),
            ..Mapping::default()
        };
        ProcessMappings {
            address_space,
            pid,
            name: format!("main-{pid}"),
            time,
            mappings: vec![mapping(0x8000, "other"), mapping(0x1000, file)],
        }
    }

    #[test]
    fn mappings_are_valid_until_the_next_ones() {
        let spaces = Spaces::new(&[
            mappings(0x2000, 7, 100, "a"),
            mappings(0x2000, 7, 200, "b"),
            mappings(0x4000, 7, 150, "c"),
        ]);
        let file = |space, pid, time| {
            let set = spaces.at(space, pid, time);
            spaces
                .find(set, 0x1fff)
                .map(|mapping| mapping.file.as_str())
        };
        assert_eq!(file(0x2000, 7, 150), Some("a"));
        assert_eq!(file(0x3000, 7, 200), Some("b"), "the other half under KPTI");
        assert_eq!(file(0x2000, 7, 50), Some("a"), "before it was seen");
        assert_eq!(file(0x4000, 7, 999), Some("c"));
        assert_eq!(file(0x6000, 7, 100), None);
        let set = spaces.at(0x2000, 7, 100);
        assert_eq!(spaces.find(set, 0x2000), None);
        assert_eq!(spaces.find(set, 0xfff), None);
    }

    #[test]
    fn page_tables_are_used_again() {
        let spaces = Spaces::new(&[
            mappings(0x2000, 7, 100, "first"),
            mappings(0x2000, 8, 200, "second"),
        ]);
        // Process 8 runs before its mappings are read; 9 shares memory with a process that has mappings (vfork).
        assert_eq!(spaces.at(0x2000, 8, 150), spaces.at(0x2000, 8, 200));
        assert_eq!(spaces.at(0x2000, 9, 150), spaces.at(0x2000, 7, 150));
        assert_eq!(spaces.at(0x2000, 9, 50), MappingSet::default());
    }

    #[test]
    fn removed_mappings_have_no_new_owner() {
        let mut spaces = Spaces::new(&[mappings(0x2000, 7, 100, "a")]);
        let before = spaces.at(0x2000, 7, 100);
        spaces.forget();
        assert_eq!(spaces.find(before, 0x1000), None);
        assert_eq!(spaces.at(0x2000, 7, 100), MappingSet::default());
        spaces.add(&mappings(0x2000, 7, 200, "b"));
        let after = spaces.at(0x2000, 7, 200);
        assert_eq!(spaces.find(before, 0x1000), None);
        assert_eq!(spaces.find(after, 0x1000).unwrap().file, "b");
        assert_eq!(spaces.find(MappingSet::default(), 0x1000), None);
    }

    #[test]
    fn equal_sets_are_one() {
        let spaces = Spaces::new(&[mappings(0x2000, 7, 100, "a"), mappings(0x4000, 8, 200, "a")]);
        assert_eq!(spaces.at(0x2000, 7, 100), spaces.at(0x4000, 8, 200));
    }
}
