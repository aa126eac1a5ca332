//! The counts of all processes, for one client.

use std::collections::BTreeMap;

use kvmprof_abi::pmc::{COUNTERS, CounterId};

use super::{Counted, ProcessKey};

/// Maximum number of processes that are told apart.
const MAX_PROCESSES: usize = 4096;
/// Stands for all others.
const OTHERS: ProcessKey = ProcessKey {
    pid: -1,
    started: 0,
};

/// What one process has counted.
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

    /// The bits of the counters that it counts.
    pub fn counters(&self) -> u32 {
        self.counters
    }

    /// Whether it counts this one.
    pub fn has(&self, counter: CounterId) -> bool {
        self.counters & counter.bit() != 0
    }

    /// Each process, with what was counted.
    pub fn rows(&self) -> impl Iterator<Item = (&ProcessKey, &Row)> {
        self.rows.iter()
    }

    /// Something was counted.
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
