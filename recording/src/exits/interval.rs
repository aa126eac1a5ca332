//! What was counted in a part of the time, with all that is needed to name it.

use std::collections::{BTreeMap, BTreeSet};

use super::Counts;

/// The exits of a guest's vCPUs in a part of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitInterval {
    /// When it began, in ns of CLOCK_MONOTONIC.
    pub begin: u64,
    /// When it ended, in ns of CLOCK_MONOTONIC.
    pub end: u64,
    /// The number of the guest's vCPUs.
    pub vcpus: u32,
    /// Whether exits have processes.
    pub knows_processes: bool,
    /// The names of reasons, by their numbers.
    pub names: BTreeMap<u32, ReasonName>,
    /// The names of the host's softirqs, by their numbers.
    pub softirqs: BTreeMap<u32, String>,
    /// The guests that ran while vCPUs waited.
    pub guests: Vec<HostGuest>,
    /// Tracepoints that the host lacks: what they show isn't known.
    pub missing: Vec<String>,
    /// What was counted.
    pub counts: Counts,
}

/// What the host's kernel calls a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasonName {
    /// Its name.
    pub name: String,
    /// Whether the vCPU waits for an interrupt in such an exit.
    pub is_halt: bool,
}

/// A guest of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostGuest {
    /// The VMM's process.
    pub process: u32,
    /// The guest's name, if it has one. Escape it before it is shown.
    pub name: Option<String>,
    /// The VMM's program. Escape it before it is shown.
    pub program: String,
    /// The threads of its vCPUs.
    pub vcpus: BTreeSet<u32>,
    /// Whether it is the guest whose exits are counted.
    pub is_counted: bool,
}

impl ExitInterval {
    /// The name of a reason; the number in hexadecimal if it has none.
    pub fn reason(&self, reason: u32) -> String {
        let known = self.names.get(&reason);
        known.map_or_else(|| format!("{reason:#x}"), |known| known.name.clone())
    }

    /// Whether the vCPU waits for an interrupt in exits of this reason.
    pub fn is_halt(&self, reason: u32) -> bool {
        self.names.get(&reason).is_some_and(|known| known.is_halt)
    }

    /// Its length, in ns.
    pub fn time(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}
