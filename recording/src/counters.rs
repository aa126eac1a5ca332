//! The counters of a running guest, which the host socket's device `pmc` returns.
//!
//! These types define its JSON form. Later versions may add counters and members, which readers ignore.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// The time at which they were read, in ns of the host's CLOCK_MONOTONIC.
    pub time: u64,
    /// The counters, by their numbers.
    pub counters: Vec<Counter>,
    /// The events that samples can be taken by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// The requested processes, by their pids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<ProcessCounters>>,
}

/// The counts of one process since it was first requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessCounters {
    /// Its pid; -1 for all counts whose process is unknown, or of processes beyond the maximum.
    pub pid: i32,
    /// Its last name.
    pub comm: String,
    /// The time at which it was started, in ns of the guest's CLOCK_MONOTONIC; 0 if unknown.
    pub started: u64,
    /// The counts by the numbers of the counters; `None` for counters that weren't requested.
    pub counts: Vec<Option<u64>>,
}

/// An event that samples can be taken by, instead of by the clock ([`EventKind`](crate::EventKind)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// What it is called.
    pub name: String,
    /// What is counted, in words.
    pub description: String,
    /// Why this host doesn't have it, and what to do.
    pub missing: Option<String>,
}

/// One counter. It counts from the guest's start, or from some time after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counter {
    /// What it is called.
    pub name: String,
    /// What is counted, in words.
    pub description: String,
    /// `ns`, or empty for a number of events.
    pub unit: String,
    /// What counts: `kvmprof`, `kvm` or `processor`.
    pub source: String,
    /// The count of each vCPU, by its index; empty if the counter is missing, for the reason in [`Counter::missing`].
    pub vcpus: Vec<u64>,
    /// Why this host doesn't have it.
    pub missing: Option<String>,
}

impl Counter {
    /// The sum over all vCPUs; `None` if this host doesn't have it.
    pub fn total(&self) -> Option<u64> {
        let sum = |sum: u64, one: &u64| sum.saturating_add(*one);
        (self.missing.is_none()).then(|| self.vcpus.iter().fold(0, sum))
    }
}

impl Counters {
    /// Reads a document.
    ///
    /// # Errors
    /// It isn't JSON, or a member has another type.
    pub fn from_json(document: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(document)
    }

    /// The increase of each counter since `earlier`, by its name; none for a counter that `earlier` doesn't have. The same for processes; one
    /// that `earlier` doesn't have keeps all of its counts.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counters = self.counters.iter().map(|now| {
            let mut before = earlier.counters.iter();
            let before = before.find(|before| before.name == now.name);
            let before = before
                .map(|before| before.vcpus.as_slice())
                .unwrap_or_default();
            let pairs = now.vcpus.iter().zip(before);
            let vcpus = pairs.map(|(now, before)| now.saturating_sub(*before));
            Counter {
                vcpus: vcpus.collect(),
                ..now.clone()
            }
        });
        Self {
            time: self.time.saturating_sub(earlier.time),
            counters: counters.collect(),
            processes: self.processes_since(earlier),
            events: Vec::new(),
        }
    }

    fn processes_since(&self, earlier: &Self) -> Option<Vec<ProcessCounters>> {
        let before: BTreeMap<(i32, u64), &ProcessCounters> = (earlier.processes.iter().flatten())
            .map(|process| ((process.pid, process.started), process))
            .collect();
        let mut processes = self.processes.clone()?;
        for process in &mut processes {
            let Some(before) = before.get(&(process.pid, process.started)) else {
                continue;
            };
            for (count, before) in process.counts.iter_mut().zip(&before.counts) {
                *count = count.map(|count| count.saturating_sub(before.unwrap_or_default()));
            }
        }
        Some(processes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &str, vcpus: &[u64]) -> Counter {
        Counter {
            name: name.to_owned(),
            vcpus: vcpus.to_vec(),
            ..Counter::default()
        }
    }

    #[test]
    fn differences_are_by_name_and_vcpu() {
        let at = |time, one, other| Counters {
            time,
            counters: vec![one, other],
            ..Counters::default()
        };
        let first = at(100, counter("halts", &[5, 7]), counter("ticks", &[1, 1]));
        let second = at(350, counter("ticks", &[4, 1]), counter("halts", &[5, 9]));
        let (ticks, halts) = (counter("ticks", &[3, 0]), counter("halts", &[0, 2]));
        assert_eq!([ticks.total(), halts.total()], [Some(3), Some(2)]);
        assert_eq!(second.since(&first), at(250, ticks, halts));
    }

    #[test]
    fn differences_of_processes_are_by_pid_and_start() {
        let process = |(pid, started, count)| ProcessCounters {
            pid,
            comm: String::new(),
            started,
            counts: vec![Some(count), None],
        };
        let document = |processes: [_; 2]| Counters {
            processes: Some(processes.map(process).to_vec()),
            ..Counters::default()
        };
        let first = document([(1, 5, 3), (2, 6, 9)]);
        let second = document([(1, 5, 7), (2, 8, 1)]);
        let expected = document([(1, 5, 4), (2, 8, 1)]);
        assert_eq!(second.since(&first), expected);
    }

    #[test]
    fn a_missing_counter_has_no_total() {
        let missing = Counter {
            missing: Some("no PMU".to_owned()),
            ..counter("cycles", &[])
        };
        assert_eq!(missing.total(), None);
    }

    #[test]
    fn a_document_of_a_later_version_is_read() {
        let later = br#"{"time": 1, "news": [], "counters": [{"name": "x", "more": 1}]}"#;
        assert_eq!(Counters::from_json(later).unwrap().counters[0].name, "x");
    }
}
