//! The labels of processes over time.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use kvmprof_recording::file::ProcessLabels;

use crate::table::Table;
use crate::text::visible;

/// A set of labels. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSet(u32);

/// Values by their keys, with characters that can't be shown replaced.
pub type LabelValues = BTreeMap<String, String>;

/// The labels of all processes.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Set number `n` is the one with index `n - 1`.
    sets: Table<LabelValues>,
    /// The labels of each process, in the order of time.
    processes: HashMap<i32, Vec<(u64, LabelSet)>, RandomState>,
}

impl Labels {
    /// Adds the labels of a process.
    pub fn add(&mut self, labels: &ProcessLabels) {
        let values = labels.labels.iter();
        let set = self.set(values.map(|(key, value)| (key.as_str(), value.as_str())));
        let times = self.processes.entry(labels.pid).or_default();
        let place = times.partition_point(|(time, _)| *time <= labels.time);
        let before = place.checked_sub(1).and_then(|before| times.get(before));
        if before.is_none_or(|(_, before)| *before != set) {
            times.insert(place, (labels.time, set));
        }
    }

    /// The set of these labels.
    pub fn set<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> LabelSet {
        let values = labels.map(|(key, value)| (visible(key), visible(value)));
        let values: LabelValues = values.collect();
        if values.is_empty() {
            return LabelSet::default();
        }
        LabelSet(self.sets.number(values).saturating_add(1))
    }

    /// The number of different sets that aren't empty.
    pub fn sets(&self) -> usize {
        self.sets.length()
    }

    /// The labels of process `pid` at `time`, in ns of CLOCK_MONOTONIC, and the times around it for which these hold: from the first one until before the
    /// second. A process is sampled before its labels are read, so the first ones also count for the time before.
    pub fn at(&self, pid: i32, time: u64) -> (LabelSet, (u64, u64)) {
        let Some(times) = self.processes.get(&pid) else {
            return (LabelSet::default(), (0, u64::MAX));
        };
        let after = times.partition_point(|(since, _)| *since <= time);
        let begin = after.checked_sub(1).map_or(0, |before| times[before].0);
        let end = times
            .get(after.max(1))
            .map_or(u64::MAX, |(since, _)| *since);
        let set = times.get(after.saturating_sub(1)).map(|(_, set)| *set);
        (set.unwrap_or_default(), (begin, end))
    }

    /// The labels of `set`.
    pub fn get(&self, set: LabelSet) -> impl Iterator<Item = (&str, &str)> {
        let index = set.0.checked_sub(1);
        let values = index.and_then(|index| self.sets.get(index));
        let values = values.into_iter().flatten();
        values.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The value of the label `key` of `set`.
    pub fn value(&self, set: LabelSet, key: &str) -> Option<&str> {
        let found = self.get(set).find(|(own, _)| *own == key);
        found.map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pid: i32, time: u64, value: &str) -> ProcessLabels {
        ProcessLabels {
            pid,
            time,
            labels: [("user".to_owned(), value.to_owned())].into(),
        }
    }

    #[test]
    fn labels_apply_until_the_next_ones() {
        let mut all = Labels::default();
        for one in [
            labels(7, 100, "0"),
            labels(7, 150, "0"),
            labels(7, 200, "1000\n"),
            labels(8, 50, "0"),
        ] {
            all.add(&one);
        }
        let value = |pid, time| {
            let (set, (begin, end)) = all.at(pid, time);
            assert!(begin <= time && time < end);
            assert_eq!(all.at(pid, begin).0, set);
            all.value(set, "user")
        };
        assert_eq!(value(7, 50), Some("0"), "before it was seen");
        assert_eq!(value(7, 199), Some("0"));
        assert_eq!(value(7, 200), Some("1000\u{fffd}"));
        assert_eq!((value(8, 60), value(9, 60)), (Some("0"), None));
        assert_eq!(all.at(7, 120).1, (100, 200));
        assert_eq!(all.at(8, 7).0, all.at(7, 100).0);
        assert_eq!(all.value(all.at(7, 120).0, "container"), None);
    }
}
