//! Exits of a guest's vCPUs as they were counted, and for how long the vCPUs waited: numbers and times by what they belong to.

mod interval;
mod sums;

use std::collections::BTreeMap;

pub use interval::{ExitInterval, HostGuest, HostTimes, ReasonName};
pub use sums::ExitSums;

/// A number of exits, or of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// How many there were.
    pub count: u64,
    /// How long they took together, from the exit to the next entry, in ns.
    pub time: u64,
}

impl Exits {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.time = self.time.saturating_add(other.time);
    }

    /// The mean time of one, in ns; 0 if there is none.
    #[must_use]
    pub fn mean(self) -> u64 {
        self.time.checked_div(self.count).unwrap_or_default()
    }

    /// Those since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            time: self.time.saturating_sub(earlier.time),
        }
    }
}

/// How many exits took how long. The classes have a width of an eighth of the power of 2 below: a time is known within 6 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![0; Self::CLASSES])
    }
}

impl Histogram {
    /// The power of 2 of the number of classes for each power of 2.
    pub const SHIFT: u8 = 3;
    /// The power of 2 from which on times are as if they were the longest ones, in ns: 18 minutes.
    pub const MOST: u8 = 40;
    /// The number of classes.
    pub const CLASSES: usize = (Self::MOST as usize - Self::SHIFT as usize + 1) << Self::SHIFT;

    /// The numbers of exits in `classes`, from the shortest times on. Classes beyond [`Self::CLASSES`] are left out.
    pub fn new(classes: impl IntoIterator<Item = u64>) -> Self {
        let mut counts: Vec<u64> = classes.into_iter().take(Self::CLASSES).collect();
        counts.resize(Self::CLASSES, 0);
        Self(counts)
    }

    /// The numbers of exits in the classes, from the shortest times on.
    pub fn classes(&self) -> &[u64] {
        &self.0
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        for (class, other) in self.0.iter_mut().zip(&other.0) {
            *class = class.saturating_add(*other);
        }
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let classes = self.0.iter().zip(&earlier.0);
        Self(
            classes
                .map(|(now, then)| now.saturating_sub(*then))
                .collect(),
        )
    }

    /// The time that at least `percent` of the exits don't exceed, in ns: the middle of its class. `None` if there is none.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let all = self
            .0
            .iter()
            .fold(0, |sum: u64, count| sum.saturating_add(*count));
        let wanted = u128::from(all) * u128::from(percent);
        let mut seen = 0_u128;
        let class = self.0.iter().position(|count| {
            seen += u128::from(*count) * 100;
            *count > 0 && seen >= wanted
        })?;
        let (begin, end) = (Self::begin(class), Self::begin(class + 1));
        Some(begin + (end - begin) / 2)
    }

    /// No exit took longer, in ns: the end of the last class that has any.
    fn longest(&self) -> u64 {
        let last = self.0.iter().rposition(|count| *count > 0);
        last.map_or(0, |class| Self::begin(class + 1) - 1)
    }

    /// The shortest time of a class, in ns: of [`Self::CLASSES`] the time from which on all are in the last class.
    pub fn begin(class: usize) -> u64 {
        let class = class.min(Self::CLASSES) as u64;
        let (power, part) = (class >> Self::SHIFT, class & ((1 << Self::SHIFT) - 1));
        match power.checked_sub(1) {
            None => part,
            Some(shift) => (part + (1 << Self::SHIFT)) << shift,
        }
    }
}

/// The exits of a vCPU for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfReason {
    /// The reason, as the processor has given it.
    pub reason: u32,
    /// The vCPU's number.
    pub vcpu: u32,
    /// All of them.
    pub exits: Exits,
    /// The longest one, in ns. Of a part of the time it is known within 12 %.
    pub longest: u64,
    /// Those that KVM has handed to the VMM.
    pub left: Exits,
    /// How long they took.
    pub histogram: Histogram,
}

/// An access that KVM has emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessKind {
    /// Of a port.
    PortRead = 1,
    /// Of a port.
    PortWrite,
    /// Of a guest-physical address without memory.
    MmioRead,
    /// Of a guest-physical address without memory.
    MmioWrite,
    /// Of a model-specific register.
    MsrRead,
    /// Of a model-specific register.
    MsrWrite,
    /// A hypercall, by its number.
    Hypercall,
}

impl AccessKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::PortRead,
        Self::PortWrite,
        Self::MmioRead,
        Self::MmioWrite,
        Self::MsrRead,
        Self::MsrWrite,
        Self::Hypercall,
    ];

    /// The one with this number; `None` if there is none.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// The exits with an access of one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfAccess {
    /// The reason.
    pub reason: u32,
    /// The kind of the first access in each of them.
    pub kind: AccessKind,
    /// The port, the guest-physical address, the register or the hypercall.
    pub place: u64,
    /// The exits.
    pub exits: Exits,
}

/// The exits at one instruction of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfFunction {
    /// The reason.
    pub reason: u32,
    /// The guest's process; `None` if it isn't known.
    pub process: Option<i32>,
    /// The guest-virtual address of the instruction, or of the one behind it.
    pub address: u64,
    /// The exits.
    pub exits: Exits,
}

/// The exits of one process of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfProcess {
    /// The reason.
    pub reason: u32,
    /// The guest's process; `None` if it isn't known.
    pub process: Option<i32>,
    /// The name of its thread that left last, padded with NULs. The guest chose it: escape it before it is shown.
    pub name: [u8; 16],
    /// The exits.
    pub exits: Exits,
}

/// A vCPU's thread, and its waits for a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfThread {
    /// Its id, as all of the host has it.
    pub thread: u32,
    /// The number of the vCPU that it ran last.
    pub vcpu: u32,
    /// How often and how long it was ready to run, but didn't: waits that are over, and the time of the present one.
    pub waits: Exits,
    /// How often it was moved to another processor.
    pub migrations: u64,
}

/// What ran while a vCPU's thread waited for the same processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfWait {
    /// The vCPU's thread.
    pub thread: u32,
    /// The thread that ran, and its process, as all of the host has them; both are 0 if the processor was idle.
    pub other_thread: u32,
    /// Its process.
    pub other_process: u32,
    /// Its name, padded with NULs. Escape it before it is shown.
    pub name: [u8; 16],
    /// How often it ran then, and how long.
    pub turns: Exits,
}

/// What the host's kernel does on a processor beside the thread that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InterruptKind {
    /// The handler of a device's interrupt.
    Device = 1,
    /// What an interrupt has left for later, as far as it is done at the interrupt's end.
    Softirq,
    /// The interrupt of the processor's timer.
    Timer,
    /// The interrupt by which another processor has this one choose another thread.
    Reschedule,
    /// Interrupts by which another processor has this one do something: all of them, or this one alone.
    Call,
    /// Of this processor alone.
    SingleCall,
}

impl InterruptKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Device,
        Self::Softirq,
        Self::Timer,
        Self::Reschedule,
        Self::Call,
        Self::SingleCall,
    ];

    /// The one with this number; `None` if there is none.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// What documents call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Softirq => "softirq",
            Self::Timer => "timer",
            Self::Reschedule => "reschedule",
            Self::Call => "call",
            Self::SingleCall => "call-single",
        }
    }
}

/// How often and how long a vCPU's thread had a processor, but an interrupt or a softirq ran there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfInterrupt {
    /// The vCPU's thread.
    pub thread: u32,
    /// What ran.
    pub kind: InterruptKind,
    /// Which one: of a device the number in `/proc/interrupts`, of a softirq that of the kernel, else 0.
    pub number: u32,
    /// How often and how long.
    pub time: Exits,
}

/// What has been counted since a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By which reasons are named: `KVM_ISA_VMX` is 1, `KVM_ISA_SVM` 2 (`arch/x86/kvm/trace.h`). 0 before the first exit.
    pub isa: u64,
    /// By reason and vCPU.
    pub reasons: Vec<OfReason>,
    /// By access.
    pub accesses: Vec<OfAccess>,
    /// By instruction.
    pub functions: Vec<OfFunction>,
    /// By process, if those of the guest are known.
    pub processes: Vec<OfProcess>,
    /// The threads that have run vCPUs.
    pub threads: Vec<OfThread>,
    /// What ran while they waited. It is less than they waited: what isn't over yet isn't in it, nor what was lost.
    pub waits: Vec<OfWait>,
    /// What interrupted them while they had a processor.
    pub interrupts: Vec<OfInterrupt>,
    /// The number of vCPUs that are in an exit now. It isn't counted before they enter the guest again.
    pub unfinished: u64,
    /// What didn't fit into a map.
    pub lost: Lost,
    /// How often KVM has handed something to the VMM.
    pub left_kvm: u64,
}

impl Counts {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reasons: since(
                &self.reasons,
                &earlier.reasons,
                |one| (one.reason, one.vcpu),
                |now, then| {
                    let histogram = now.histogram.since(&then.histogram);
                    let longest = match now.longest > then.longest {
                        true => now.longest,
                        false => now.longest.min(histogram.longest()),
                    };
                    OfReason {
                        exits: now.exits.since(then.exits),
                        left: now.left.since(then.left),
                        longest,
                        histogram,
                        ..*now
                    }
                },
            ),
            accesses: since(
                &self.accesses,
                &earlier.accesses,
                |one| (one.reason, one.kind, one.place),
                |now, then| OfAccess {
                    exits: now.exits.since(then.exits),
                    ..*now
                },
            ),
            functions: since(
                &self.functions,
                &earlier.functions,
                |one| (one.reason, one.process, one.address),
                |now, then| OfFunction {
                    exits: now.exits.since(then.exits),
                    ..*now
                },
            ),
            processes: since(
                &self.processes,
                &earlier.processes,
                |one| (one.reason, one.process),
                |now, then| OfProcess {
                    exits: now.exits.since(then.exits),
                    ..*now
                },
            ),
            threads: since(
                &self.threads,
                &earlier.threads,
                |one| one.thread,
                |now, then| OfThread {
                    waits: now.waits.since(then.waits),
                    migrations: now.migrations.saturating_sub(then.migrations),
                    ..*now
                },
            ),
            waits: since(
                &self.waits,
                &earlier.waits,
                |one| (one.thread, one.other_thread, one.other_process),
                |now, then| OfWait {
                    turns: now.turns.since(then.turns),
                    ..*now
                },
            ),
            interrupts: since(
                &self.interrupts,
                &earlier.interrupts,
                |one| (one.thread, one.kind, one.number),
                |now, then| OfInterrupt {
                    time: now.time.since(then.time),
                    ..*now
                },
            ),
            lost: self.lost.since(earlier.lost),
            left_kvm: self.left_kvm.saturating_sub(earlier.left_kvm),
            ..*self
        }
    }
}

/// The entries that are new since `earlier`, and what `difference` says of the others.
fn since<T: Clone, K: Ord>(
    now: &[T],
    earlier: &[T],
    key: impl Fn(&T) -> K,
    difference: impl Fn(&T, &T) -> T,
) -> Vec<T> {
    let earlier: BTreeMap<K, &T> = earlier.iter().map(|one| (key(one), one)).collect();
    let entries = now.iter().map(|one| match earlier.get(&key(one)) {
        Some(then) => difference(one, then),
        None => one.clone(),
    });
    entries.collect()
}

/// How many exits are missing, because a map was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Everywhere, since there are too many threads of vCPUs.
    pub threads: u64,
    /// Everywhere, since there are too many reasons of vCPUs.
    pub reasons: u64,
    /// Among the accesses, since there are too many places.
    pub accesses: u64,
    /// Among the functions, since there are too many addresses.
    pub functions: u64,
    /// Among the processes, since there are too many.
    pub processes: u64,
    /// Turns of others while vCPUs waited, since there are too many threads.
    pub waits: u64,
    /// Waits of which only the time is known, since too many vCPUs waited for the same processor.
    pub slots: u64,
    /// Interrupts, since there are too many different ones.
    pub interrupts: u64,
}

impl Lost {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        for (sum, more) in self.all_mut().into_iter().zip(other.all()) {
            *sum = sum.saturating_add(more);
        }
    }

    /// The numbers in the order of the members.
    pub(crate) fn all(mut self) -> [u64; 8] {
        self.all_mut().map(|number| *number)
    }

    /// The same, to be changed.
    pub(crate) fn all_mut(&mut self) -> [&mut u64; 8] {
        let Self {
            threads,
            reasons,
            accesses,
            functions,
            processes,
            waits,
            slots,
            interrupts,
        } = self;
        [
            threads, reasons, accesses, functions, processes, waits, slots, interrupts,
        ]
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            threads: self.threads.saturating_sub(earlier.threads),
            reasons: self.reasons.saturating_sub(earlier.reasons),
            accesses: self.accesses.saturating_sub(earlier.accesses),
            functions: self.functions.saturating_sub(earlier.functions),
            processes: self.processes.saturating_sub(earlier.processes),
            waits: self.waits.saturating_sub(earlier.waits),
            slots: self.slots.saturating_sub(earlier.slots),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
        }
    }
}

#[cfg(test)]
mod tests;
