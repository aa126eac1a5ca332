//! The mappings of each address space over time.

use std::collections::HashMap;
use std::sync::Arc;

use super::former::Epoch;
use super::generated_code::GeneratedState;
use super::labels::LabelSet;
use kvmprof_recording::file::{Mapping, ProcessMappings, kernels_half, page_tables};

/// Maximum number of other processes' mappings that a search skips: their page tables were in the same memory.
const MAX_OTHERS: usize = 256;

/// The mappings of an address space at a time, the names of its generated code, and the kernel's at the same time. Equal sets of any processes are one set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappingSet {
    user: u32,
    kernel: Epoch,
    generated: GeneratedState,
}

impl MappingSet {
    fn of_user(user: u32) -> Self {
        Self {
            user,
            ..Self::default()
        }
    }

    /// The same mappings, and the kernel's in `kernel`.
    #[must_use]
    pub fn with_kernel(self, kernel: Epoch) -> Self {
        Self { kernel, ..self }
    }

    /// The kernel's alone.
    #[must_use]
    pub fn kernel_alone(self) -> Self {
        Self {
            kernel: self.kernel,
            ..Self::default()
        }
    }

    /// What the process had written of the names of its generated code.
    pub fn generated(self) -> GeneratedState {
        self.generated
    }

    /// When the kernel's modules were as they were.
    pub fn kernel(self) -> Epoch {
        self.kernel
    }
}

/// What a process has at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProcessState {
    /// Its mappings.
    pub mappings: MappingSet,
    /// Its labels.
    pub labels: LabelSet,
}

/// What a process has from `begin` until before `end`, in ns of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateTimes {
    /// What it has.
    pub state: ProcessState,
    begin: u64,
    end: u64,
}

impl StateTimes {
    /// Whether it has that at `time`.
    pub fn contains(&self, time: u64) -> bool {
        (self.begin..self.end).contains(&time)
    }

    /// The same with the kernel in `epoch` and with `labels`, each for those of these times that are from its first time until before its second one.
    #[must_use]
    pub fn with(
        mut self,
        epoch: Epoch,
        of_epoch: (u64, u64),
        labels: LabelSet,
        of_labels: (u64, u64),
    ) -> Self {
        self.state.mappings = self.state.mappings.with_kernel(epoch);
        self.state.labels = labels;
        self.within(of_epoch.0, of_epoch.1)
            .within(of_labels.0, of_labels.1)
    }

    /// The same with the names of generated code in state `generated`, for those of these times that are from its first time until before its second one.
    #[must_use]
    pub fn with_generated(mut self, generated: GeneratedState, times: (u64, u64)) -> Self {
        self.state.mappings.generated = generated;
        self.within(times.0, times.1)
    }

    fn within(self, begin: u64, end: u64) -> Self {
        Self {
            begin: self.begin.max(begin),
            end: self.end.min(end),
            ..self
        }
    }
}

/// The time from which mappings are valid, their process, and their set.
#[derive(Clone, Copy, Debug)]
struct MappingsSince {
    time: u64,
    pid: i32,
    set: MappingSet,
}

/// Mappings by their addresses, and the path of the perf map of those without a file.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct MappedRanges {
    mappings: Vec<Mapping>,
    perf_map: String,
}

/// The mappings of all address spaces.
#[derive(Clone, Debug)]
pub struct Spaces {
    /// The number of the first set, which has no mappings.
    first: u32,
    sets: Vec<Arc<MappedRanges>>,
    numbers: HashMap<Arc<MappedRanges>, MappingSet>,
    /// The mappings of each address space, in the order of time.
    spaces: HashMap<u64, Vec<MappingsSince>>,
    /// The last known name of each process's main thread.
    names: HashMap<i32, String>,
    /// Some page tables are where KPTI has the user's half of others: the guest doesn't use it.
    is_without_kpti: bool,
}

impl Default for Spaces {
    fn default() -> Self {
        Self {
            first: 0,
            sets: vec![Arc::default()],
            numbers: HashMap::new(),
            spaces: HashMap::new(),
            names: HashMap::new(),
            is_without_kpti: false,
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
        let key = page_tables(mappings.address_space);
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
        let key = page_tables(mappings.address_space);
        self.is_without_kpti |= key != kernels_half(key);
        let (time, pid) = (mappings.time, mappings.pid);
        let mut sorted = mappings.mappings.clone();
        sorted.retain(|mapping| mapping.begin < mapping.end);
        sorted.sort_by_key(|mapping| mapping.begin);
        let mapped = MappedRanges {
            mappings: sorted,
            perf_map: mappings.perf_map.clone(),
        };
        let number = u32::try_from(self.sets.len()).ok();
        let number = number.and_then(|number| self.first.checked_add(number));
        let set = match (self.numbers.get(&mapped), number) {
            (Some(set), _) => *set,
            (None, Some(number)) => {
                let mapped = Arc::new(mapped);
                self.sets.push(Arc::clone(&mapped));
                let set = MappingSet::of_user(number);
                self.numbers.insert(mapped, set);
                set
            }
            (None, None) => return,
        };
        let times = self.spaces.entry(key).or_default();
        times.push(MappingsSince { time, pid, set });
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

    /// The mappings of process `pid` in `address_space` at `time`, in ns of CLOCK_MONOTONIC. A process is sampled before its mappings
    /// are read, so its first mappings also count for the time before. None of another process count: the memory of page tables is used
    /// again. A process that isn't known (-1) has those of the only one that was ever seen in these very page tables.
    pub fn at(&self, address_space: u64, pid: i32, time: u64) -> MappingSet {
        self.times(address_space, pid, time).state.mappings
    }

    /// The same, with the times for which it holds.
    pub fn times(&self, address_space: u64, pid: i32, time: u64) -> StateTimes {
        let tables = page_tables(address_space);
        let mut times = StateTimes {
            end: u64::MAX,
            ..StateTimes::default()
        };
        let found = self.in_tables(tables, pid, time, &mut times).or_else(|| {
            // In user mode under KPTI, the page tables are the user's half. Without KPTI they may be another process's.
            let may_be_half = pid >= 0 && !self.is_without_kpti;
            let half = Some(kernels_half(tables)).filter(|_| may_be_half);
            self.in_tables(half.filter(|half| *half != tables)?, pid, time, &mut times)
        });
        times.state.mappings = found.unwrap_or_default();
        times
    }

    /// Whether two samples' `address_space` can be the same: the same page tables, or, as far as is known, both halves of a pair under KPTI.
    pub fn can_be_same(&self, one: u64, other: u64) -> bool {
        page_tables(one) == page_tables(other)
            || !self.is_without_kpti && kernels_half(one) == kernels_half(other)
    }

    /// The mappings of process `pid` in the page tables at `tables`. They are the same `within` these times.
    fn in_tables(
        &self,
        tables: u64,
        pid: i32,
        time: u64,
        within: &mut StateTimes,
    ) -> Option<MappingSet> {
        let times = self.spaces.get(&tables)?;
        let pid = if pid >= 0 {
            pid
        } else {
            let first = times.first()?.pid;
            let others = times.iter().any(|since| since.pid != first);
            Some(first).filter(|_| !others)?
        };
        let (before, after) = times.split_at(times.partition_point(|since| since.time <= time));
        let begin = before.last().map_or(0, |since| since.time);
        let end = after.first().map_or(u64::MAX, |since| since.time);
        *within = within.within(begin, end);
        let own = |since: &&MappingsSince| since.pid == pid;
        let found = before.iter().rev().take(MAX_OTHERS).find(own);
        let found = found.or_else(|| after.iter().take(MAX_OTHERS).find(own));
        found.map(|since| since.set)
    }

    /// The mappings of `set`, by their addresses.
    pub fn mappings(&self, set: MappingSet) -> &[Mapping] {
        self.mapped(set).map_or(&[], |mapped| &mapped.mappings)
    }

    /// The path, in the guest, of the perf map of the process with the mappings `set`; empty if unknown.
    pub fn perf_map(&self, set: MappingSet) -> &str {
        self.mapped(set).map_or("", |mapped| &mapped.perf_map)
    }

    fn mapped(&self, set: MappingSet) -> Option<&MappedRanges> {
        let index = usize::try_from(set.user.checked_sub(self.first)?).ok()?;
        self.sets.get(index).map(Arc::as_ref)
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
            ..ProcessMappings::default()
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
            let found = spaces.find(spaces.at(space, pid, time), 0x1fff);
            found.map(|mapping| mapping.file.as_str())
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
        // Process 8 runs before its mappings are read.
        assert_eq!(spaces.at(0x2000, 8, 150), spaces.at(0x2000, 8, 200));
        // Those of 9 were never read, and the owner of an unknown process's tables can't be determined.
        assert_eq!(spaces.at(0x2000, 9, 150), MappingSet::default());
        assert_eq!(spaces.at(0x2000, -1, 150), MappingSet::default());
        let alone = Spaces::new(&[mappings(0x2000, 7, 100, "only")]);
        assert_eq!(alone.at(0x2000, -1, 150), alone.at(0x2000, 7, 100));
        assert_ne!(alone.at(0x2000, -1, 150), MappingSet::default());
    }

    #[test]
    fn without_kpti_adjacent_tables_are_two_processes() {
        let both = [
            mappings(0x2000, 7, 100, "first"),
            mappings(0x3000, 8, 100, "second"),
        ];
        let spaces = Spaces::new(&both);
        let file = |spaces: &Spaces, space, pid| {
            let set = spaces.at(space, pid, 150);
            spaces.find(set, 0x1000).map(|found| found.file.clone())
        };
        assert_eq!(file(&spaces, 0x2000, 7).as_deref(), Some("first"));
        assert_eq!(file(&spaces, 0x3000, 8).as_deref(), Some("second"));
        // Process 7 has executed another program there, whose mappings weren't read.
        assert_eq!(file(&spaces, 0x3000, 7), None);
        // A late recorder has those of one.
        let late = Spaces::new(&both[..1]);
        assert_eq!(file(&late, 0x3000, 8), None);
        assert_eq!(file(&late, 0x3000, -1), None);
        assert_eq!(file(&late, 0x2000, -1).as_deref(), Some("first"));
        let under_kpti = file(&late, 0x3000, 7);
        assert_eq!(under_kpti.as_deref(), Some("first"));
        // Earlier recordings have them in one place.
        let earlier = Spaces::new(&[both[0].clone(), mappings(0x2000, 8, 110, "second")]);
        assert_eq!(file(&earlier, 0x2000, 7).as_deref(), Some("first"));
        assert_eq!(file(&earlier, 0x3000, 8).as_deref(), Some("second"));
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
