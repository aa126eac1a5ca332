//! What was at a range of addresses before it changed: code of modules that have been unloaded.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::kallsyms::{AddressedFunction, FunctionAt, LAST};

/// Maximum number of ranges, and of functions in all of them. Of what comes beyond, only where and until when it was is known.
const MAX_RANGES: usize = 4096;
const MAX_FUNCTIONS: usize = 1 << 18;

/// A change of a range, in ns of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// It had happened at this time.
    pub since: u64,
    /// It hadn't yet at this one.
    pub unchanged: u64,
}

/// A stretch of time in which nothing changes; the default is the last one, which has no end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(u32);

impl Epoch {
    /// Any of them: only what was always the same counts.
    pub const ANY: Self = Self(u32::MAX);
}

/// What was somewhere at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormerContent<'a> {
    /// What is there now.
    Same,
    /// Something else.
    Other(Option<FunctionAt<'a>>),
}

/// A range and its functions before a change.
#[derive(Clone, Debug)]
struct FormerRange {
    range: RangeInclusive<u64>,
    /// Sorted by address.
    functions: Vec<AddressedFunction>,
    change: Change,
}

/// All ranges that have changed.
#[derive(Clone, Debug, Default)]
pub struct FormerCode {
    formers: Vec<FormerRange>,
    functions: usize,
    /// The range of what is beyond the limits, and since when no more of it has changed.
    beyond: Option<(RangeInclusive<u64>, u64)>,
    /// The starts of epochs, and their numbers.
    begins: BTreeMap<u64, u32>,
    /// The starts of epochs by number, counted from 1.
    numbered: Vec<u64>,
}

impl FormerCode {
    /// Notes that `functions`, sorted by address, were in `range` before `change`.
    pub fn add(
        &mut self,
        range: RangeInclusive<u64>,
        functions: Vec<AddressedFunction>,
        change: Change,
    ) {
        let count = self.functions + functions.len();
        if self.formers.len() >= MAX_RANGES || count > MAX_FUNCTIONS {
            let (old, since) = self.beyond.take().unwrap_or((range.clone(), 0));
            let range = *old.start().min(range.start())..=*old.end().max(range.end());
            self.beyond = Some((range, since.max(change.since)));
            return;
        }
        self.functions = count;
        for begin in [0, change.unchanged.saturating_add(1), change.since] {
            let number = u32::try_from(self.numbered.len() + 1).unwrap_or(u32::MAX);
            if let std::collections::btree_map::Entry::Vacant(entry) = self.begins.entry(begin) {
                entry.insert(number);
                self.numbered.push(begin);
            }
        }
        self.formers.push(FormerRange {
            range,
            functions,
            change,
        });
    }

    /// The epoch of `time`.
    pub fn epoch(&self, time: u64) -> Epoch {
        let beyond = self.beyond.as_ref().map_or(0, |(_, since)| *since);
        let Some((last, _)) = self.begins.last_key_value() else {
            return Epoch::default();
        };
        if time >= *last && time >= beyond {
            return Epoch::default();
        }
        let begin = self.begins.range(..=time).next_back();
        begin.map_or_else(Epoch::default, |(_, number)| Epoch(*number))
    }

    /// The times around `time` that are in the same epoch: from the first one until before the second.
    pub fn epoch_times(&self, time: u64) -> (u64, u64) {
        let begin = self.begins.range(..=time).next_back();
        let end = self.begins.range(time.saturating_add(1)..).next();
        let begin = begin.map_or(0, |(begin, _)| *begin);
        let end = end.map_or(u64::MAX, |(end, _)| *end);
        match &self.beyond {
            Some((_, since)) if time < *since => (begin, end.min(*since)),
            Some((_, since)) => (begin.max(*since), end),
            None => (begin, end),
        }
    }

    /// What was at `address` in `epoch`.
    pub fn at(&self, address: u64, epoch: Epoch) -> FormerContent<'_> {
        let has_changed = || {
            let mut formers = self.formers.iter();
            formers.any(|it| it.range.contains(&address))
                || (self.beyond.iter()).any(|(range, _)| range.contains(&address))
        };
        if epoch == Epoch::ANY && has_changed() {
            return FormerContent::Other(None);
        }
        let number = usize::try_from(epoch.0).ok();
        let index = number.and_then(|number| number.checked_sub(1));
        let Some(time) = index.and_then(|index| self.numbered.get(index)) else {
            return FormerContent::Same;
        };
        let formers = self.formers.iter();
        let then = formers.filter(|it| *time < it.change.since && it.range.contains(&address));
        // Of several that were there one after the other, the first one that had an end later.
        let former = then.min_by_key(|former| former.change.since);
        let beyond = self.beyond.as_ref();
        let is_beyond =
            beyond.is_some_and(|(range, since)| time < since && range.contains(&address));
        match former {
            Some(former) if *time <= former.change.unchanged => {
                FormerContent::Other(former.find(address))
            }
            // It can have been the one as well as the other.
            Some(_) => FormerContent::Other(None),
            None if is_beyond => FormerContent::Other(None),
            None => FormerContent::Same,
        }
    }
}

impl FormerRange {
    fn find(&self, address: u64) -> Option<FunctionAt<'_>> {
        let after = self
            .functions
            .partition_point(|(begin, _)| *begin <= address);
        let (begin, function) = self.functions.get(after.checked_sub(1)?)?;
        let offset = address - begin;
        let is_in = !function.name.is_empty() && (!function.is_last || offset < LAST);
        is_in.then_some(FunctionAt {
            name: &function.name,
            module: &function.module,
            offset,
        })
    }
}
