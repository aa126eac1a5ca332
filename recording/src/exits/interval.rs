//! What was counted in a part of the time, with all that is needed to name it.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_abi::text::{task_name, visible};

use super::{Counts, Exits, InterruptKind, OfInterrupt, OfWait};

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
    /// The containers of the guest's processes, by their ids, as far as they are known; empty for a process in none.
    pub containers: BTreeMap<i32, String>,
    /// What the host's kernel knows of its processors' time beside that.
    pub host: HostTimes,
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

/// Processor time that the VMM, or the whole host, was denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTimes {
    /// In how many periods a control group of the VMM's threads had no quota left, and for how long (cgroup-v2.rst, `cpu.stat`): all groups and processors together.
    pub throttled: Exits,
    /// For how long the host's processors waited for those of its own host, in ns, all together (proc_stat(5), `steal`).
    pub stolen: u64,
    /// The number of the host's processors.
    pub processors: u32,
}

impl HostTimes {
    /// Adds those of another time.
    pub fn add(&mut self, other: Self) {
        self.throttled.add(other.throttled);
        self.stolen = self.stolen.saturating_add(other.stolen);
        self.processors = self.processors.max(other.processors);
    }
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

    /// The guest to whose VMM the thread belongs that ran.
    pub fn guest_of(&self, other: &OfWait) -> Option<&HostGuest> {
        let mut guests = self.guests.iter();
        guests.find(|guest| guest.process == other.other_process)
    }

    /// What ran while a vCPU waited, in words; it can be shown.
    pub fn taker(&self, other: &OfWait) -> String {
        if other.other_thread == 0 {
            return "[idle]".to_owned();
        }
        let Some(guest) = self.guest_of(other) else {
            return task_name(&other.name).collect();
        };
        let is_vcpu = guest.vcpus.contains(&other.other_thread);
        let part_of = if is_vcpu { "vCPU" } else { "VMM" };
        match &guest.name {
            _ if guest.is_counted => format!("{part_of} of this guest"),
            Some(name) => format!("{part_of} of {}", visible(name)),
            None => format!("{part_of} of {}", visible(&guest.program)),
        }
    }

    /// An interrupt, in words; it can be shown.
    pub fn interrupt(&self, one: &OfInterrupt) -> String {
        let number = one.number;
        match (one.kind, self.softirqs.get(&number)) {
            (InterruptKind::Device, _) => format!("[interrupt {number}]"),
            (InterruptKind::Softirq, Some(name)) => format!("[softirq {}]", visible(name)),
            (InterruptKind::Softirq, None) => format!("[softirq {number}]"),
            (other, _) => format!("[interrupt {}]", other.name()),
        }
    }

    /// Its length, in ns.
    pub fn time(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}
