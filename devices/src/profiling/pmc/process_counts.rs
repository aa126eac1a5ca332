//! The counts of all processes, for one client.

use std::collections::BTreeMap;

use kvmprof_abi::pmc::{COUNTERS, CounterId};

use super::{Counted, ProcessKey};

/// Maximum number of processes with counts of their own.
const MAX_PROCESSES: usize = 4096;
/// Stands for all other processes.
const OTHERS: ProcessKey = ProcessKey {
    pid: -1,
    started: 0,
};

/// The counts of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    /// Its last name.
    pub comm: [u8; 16],
    /// By the numbers of the counters.
    pub counts: [u64; COUNTERS],
}

/// Counts all processes.
#[derive(Debug)]
pub struct Account {
    counters: u32,
    rows: BTreeMap<ProcessKey, Row>,
}

impl Account {
    /// Counts the counters whose bits are set in `counters`.
    pub fn new(counters: u32) -> Self {
        Self {
            counters,
            rows: BTreeMap::new(),
        }
    }

    /// The bits of the counters that are counted.
    pub fn counters(&self) -> u32 {
        self.counters
    }

    /// Whether `counter` is counted.
    pub fn has(&self, counter: CounterId) -> bool {
        self.counters & counter.bit() != 0
    }

    /// All processes, with their counts.
    pub fn rows(&self) -> impl Iterator<Item = (&ProcessKey, &Row)> {
        self.rows.iter()
    }

    /// Adds `counted` to the row of its process.
    pub fn count(&mut self, counted: &Counted) {
        let is_known = self.rows.contains_key(&counted.process);
        let key = if is_known || self.rows.len() < MAX_PROCESSES {
            counted.process
        } else {
            OTHERS
        };
        let row = self.rows.entry(key).or_default();
        if key == counted.process {
            row.comm = counted.comm;
        }
        for (counter, count) in CounterId::ALL.into_iter().zip(counted.counts) {
            if self.counters & counter.bit() != 0
                && let Some(sum) = row.counts.get_mut(counter.number())
            {
                *sum = sum.saturating_add(count);
            }
        }
    }
}
