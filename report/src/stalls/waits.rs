//! Waits of Linux's kernel for locks and for other vCPUs, during which a vCPU runs in a loop.

use std::collections::HashMap;
use std::sync::Arc;

use kvmprof_recording::{Mode, Sample};
use serde::Serialize;

use super::running::{COPIES, Names, Running, SharedRunning, most_frequent};
use super::stolen::{LastSeen, StolenTicks};
use crate::budget::{OutputBudget, TooMuch};
use crate::model::{Frame, FrameKind};
use crate::symbolize::{KERNEL, Symbols};

/// Maximum number of samples that are compared with stolen ticks of other vCPUs.
const MAX_COMPARED: usize = 1 << 20;

/// What a vCPU waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitKind {
    /// A spin lock (`kernel/locking/qspinlock.c`).
    SpinLock,
    /// A spinning lock for readers and writers (`kernel/locking/qrwlock.c`).
    ReadWriteLock,
    /// A mutex whose owner is running (`kernel/locking/mutex.c`).
    Mutex,
    /// A semaphore for readers and writers whose owner is running (`kernel/locking/rwsem.c`).
    ReadWriteSemaphore,
    /// The queue of those that wait for a mutex or semaphore (`kernel/locking/osq_lock.c`).
    LockQueue,
    /// A mutex of a PREEMPT_RT kernel, or one with priority inheritance (`kernel/locking/rtmutex.c`).
    RtMutex,
    /// Other vCPUs that have to carry out a function, for example to flush a TLB (`kernel/smp.c`).
    OtherVcpus,
    /// All vCPUs, which have to stop, for example so that the kernel's code can be patched (`kernel/stop_machine.c`).
    StopMachine,
}

/// The kernel's functions that wait in a loop, without the suffixes that a compiler appends to their names.
const FUNCTIONS: [(&str, WaitKind); 17] = [
    ("native_queued_spin_lock_slowpath", WaitKind::SpinLock),
    ("__pv_queued_spin_lock_slowpath", WaitKind::SpinLock),
    ("queued_spin_lock_slowpath", WaitKind::SpinLock),
    ("kvm_wait", WaitKind::SpinLock),
    ("queued_read_lock_slowpath", WaitKind::ReadWriteLock),
    ("queued_write_lock_slowpath", WaitKind::ReadWriteLock),
    ("mutex_spin_on_owner", WaitKind::Mutex),
    ("mutex_optimistic_spin", WaitKind::Mutex),
    ("rwsem_spin_on_owner", WaitKind::ReadWriteSemaphore),
    ("rwsem_optimistic_spin", WaitKind::ReadWriteSemaphore),
    ("osq_lock", WaitKind::LockQueue),
    ("osq_wait_next", WaitKind::LockQueue),
    ("rtmutex_spin_on_owner", WaitKind::RtMutex),
    ("rt_mutex_adaptive_spinwait", WaitKind::RtMutex),
    ("smp_call_function_many_cond", WaitKind::OtherVcpus),
    ("smp_call_function_single", WaitKind::OtherVcpus),
    ("multi_cpu_stop", WaitKind::StopMachine),
];

/// Prefixes of functions that take a lock or call other vCPUs for their callers. The function that waits is the caller of these.
const TAKERS: [&str; 25] = [
    "_raw_spin_",
    "__raw_spin_",
    "do_raw_spin_",
    "_raw_read_",
    "_raw_write_",
    "__raw_read_",
    "__raw_write_",
    "native_queued_",
    "__pv_queued_",
    "queued_",
    "mutex_",
    "__mutex_",
    "ww_mutex_",
    "down_",
    "__down_",
    "rwsem_",
    "osq_",
    "rt_mutex_",
    "__rt_mutex_",
    "rt_spin_",
    "rtlock_",
    "rwbase_",
    "smp_call_function",
    "on_each_cpu",
    "stop_",
];

impl WaitKind {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SpinLock => "spin lock",
            Self::ReadWriteLock => "rwlock",
            Self::Mutex => "mutex",
            Self::ReadWriteSemaphore => "rwsem",
            Self::LockQueue => "lock queue",
            Self::RtMutex => "rt mutex",
            Self::OtherVcpus => "other vCPUs",
            Self::StopMachine => "stop machine",
        }
    }

    /// What function `name` of the kernel waits for, if it is known to wait in a loop.
    fn of_function(name: &str) -> Option<Self> {
        let name = name.split('.').next().unwrap_or(name);
        let known = FUNCTIONS.iter().find(|(known, _)| *known == name);
        known.map(|(_, kind)| *kind)
    }
}

/// Samples that waited for the same thing for the same function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitRow {
    /// What was waited for.
    pub kind: WaitKind,
    /// The function that takes the lock, or needs the other vCPUs: the innermost one that isn't part of the lock's own
    /// code.
    pub function: String,
    /// Its module.
    pub module: String,
    /// The number of samples.
    pub samples: u64,
    /// The number of samples at which the host didn't run another vCPU, which may have held the lock or had to answer.
    pub beside_stolen: u64,
    /// What such vCPUs ran most often at their last samples.
    pub stolen_from: Option<Running>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    vcpu: u16,
    kind: WaitKind,
    stack: Option<u32>,
    time: u64,
}

/// Finds samples that wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    found: Vec<Wait>,
    /// How many samples were left out because of the limit, by kind and stack.
    others: HashMap<(WaitKind, Option<u32>), u64>,
}

#[derive(Default)]
struct Sum {
    samples: u64,
    stolen: HashMap<LastSeen, u64>,
}

/// What a sample waits for, and the function that waits with its module.
type WaitKey = (WaitKind, Arc<str>, Arc<str>);

impl Waits {
    /// Takes `sample`. Returns what it waits for; `None` if it doesn't wait.
    pub fn take(
        &mut self,
        sample: &Sample,
        stack: Option<u32>,
        kernel: &Symbols,
    ) -> Option<WaitKind> {
        // Interrupts and softirqs take locks, too. Waits of the code that they interrupted don't count.
        matches!(sample.mode, Mode::Kernel | Mode::Interrupt).then_some(())?;
        let function = kernel.locate_then(sample.pc, kernel.epoch(sample.time));
        let function = function.filter(|found| found.module.as_ref() == KERNEL);
        let kind = WaitKind::of_function(function?.name)?;
        if self.found.len() < MAX_COMPARED {
            self.found.push(Wait {
                vcpu: sample.vcpu,
                kind,
                stack,
                time: sample.time,
            });
        } else {
            *self.others.entry((kind, stack)).or_default() += 1;
        }
        Some(kind)
    }

    /// How many samples were left out because of the limit.
    pub fn not_compared(&self) -> u64 {
        self.others.values().sum()
    }

    /// The `top` rows with the most samples.
    ///
    /// # Errors
    /// They don't fit into `budget`.
    pub fn rows(
        &self,
        stolen: &StolenTicks,
        names: &Names<'_>,
        top: usize,
        budget: &OutputBudget,
    ) -> Result<Vec<WaitRow>, TooMuch> {
        let mut by_stack: HashMap<(WaitKind, Option<u32>), Sum> = HashMap::new();
        for wait in &self.found {
            let sum = by_stack.entry((wait.kind, wait.stack)).or_default();
            sum.samples += 1;
            if let Some(last_seen) = stolen.at(wait.vcpu, wait.time) {
                *sum.stolen.entry(last_seen).or_default() += 1;
            }
        }
        for (key, samples) in &self.others {
            by_stack.entry(*key).or_default().samples += samples;
        }
        let mut sums: HashMap<WaitKey, Sum> = HashMap::new();
        for ((kind, stack), sum) in by_stack {
            let (function, module) = wanted_by(names.frames(stack));
            let all = sums.entry((kind, function, module)).or_default();
            all.samples += sum.samples;
            for (last_seen, count) in sum.stolen {
                *all.stolen.entry(last_seen).or_default() += count;
            }
        }
        let mut sums: Vec<(WaitKey, Sum)> = sums.into_iter().collect();
        sums.sort_by(|(one, sum), (other, others)| {
            let by_samples = others.samples.cmp(&sum.samples);
            by_samples.then_with(|| one.cmp(other))
        });
        let rows = sums.iter().take(top);
        rows.map(|(wanted, sum)| row(wanted, sum, names, budget))
            .collect()
    }
}

fn row(
    (kind, function, module): &WaitKey,
    sum: &Sum,
    names: &Names<'_>,
    budget: &OutputBudget,
) -> Result<WaitRow, TooMuch> {
    let mut stolen_from: HashMap<SharedRunning<'_>, u64> = HashMap::new();
    for (last_seen, count) in &sum.stolen {
        *stolen_from.entry(last_seen.running(names)).or_default() += count;
    }
    let most = most_frequent(stolen_from);
    let from = most.iter().flat_map(SharedRunning::names);
    budget.take_row([&**function, &**module].into_iter().chain(from), COPIES)?;
    Ok(WaitRow {
        kind: *kind,
        function: function.as_ref().to_owned(),
        module: module.as_ref().to_owned(),
        samples: sum.samples,
        beside_stolen: sum.stolen.values().sum(),
        stolen_from: most.as_ref().map(SharedRunning::to_row),
    })
}

/// The innermost function that calls those that wait and take locks, and its module.
fn wanted_by<'a>(frames: impl Iterator<Item = Frame<'a>>) -> (Arc<str>, Arc<str>) {
    let is_taker = |frame: &Frame<'_>| {
        let name = frame.name.as_ref();
        WaitKind::of_function(name).is_some() || TAKERS.iter().any(|begin| name.starts_with(begin))
    };
    let mut last = None;
    for frame in frames.take_while(|frame| frame.kind == FrameKind::Kernel) {
        last = Some(frame);
        if !is_taker(&frame) {
            break;
        }
    }
    match last {
        Some(frame) => (Arc::clone(frame.name), Arc::clone(frame.module)),
        None => ("[unknown]".into(), "[unknown]".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_suffixes_do_not_split_functions() {
        let kind = WaitKind::of_function;
        assert_eq!(kind("mutex_spin_on_owner.isra.0"), Some(WaitKind::Mutex));
        assert_eq!(kind("osq_lock"), Some(WaitKind::LockQueue));
        assert_eq!(kind("osq_lock_free"), None);
    }
}
