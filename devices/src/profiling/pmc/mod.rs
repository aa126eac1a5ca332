//! pmc(9): counters of processes, of the kernel, and profiling by a counter's overflow.
//!
//! [`Pmc`] carries out the calls of `PMC.md`, and takes counts of processes. Other modules determine which process ran, and
//! make ticks. [`Account`] counts all processes for one client.

mod process;
mod process_counts;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{COUNTERS, Call, CounterId, Function, KERNEL, VALUE_FLAGS_CHILDREN};
use kvmprof_recording::{EventKind, SamplingEvent};

use process::Process;
pub use process_counts::{Account, Row};

/// The result of `pmc_get_num_counters`.
const NUMBER: i64 = CounterId::CacheMisses as i64 + 1;
const _: () = assert!(NUMBER.cast_unsigned() == COUNTERS as u64);

/// Maximum number of processes that have counters.
const MAX_PROCESSES: usize = 1024;

/// A process of the guest. Another process may have its pid later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessKey {
    /// Its id.
    pub pid: i32,
    /// When it was started, in ns of the guest's CLOCK_MONOTONIC; 0 when unknown.
    pub started: u64,
}

/// The parent of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    /// The process.
    pub key: ProcessKey,
    /// Whether another process may have forked the child: a guest's kernel gives the children of a process that has ended to another one.
    pub may_have_adopted: bool,
}

/// The counts of a stretch of time in which a process ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The process.
    pub process: ProcessKey,
    /// Its parent, if that is known.
    pub parent: Option<Parent>,
    /// Its name.
    pub comm: [u8; 16],
    /// The counts, by the numbers of the counters.
    pub counts: [u64; COUNTERS],
}

/// The result of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Called {
    /// The return value of the function.
    pub returned: i64,
    /// The counter's value.
    pub value: u64,
}

/// The counters of the whole guest.
pub trait Totals {
    /// Whether the host can count it.
    fn can_count(&self, counter: CounterId) -> bool;

    /// Whether events of this kind can make ticks.
    fn can_sample(&self, kind: EventKind) -> bool;

    /// The count of `counter` since the guest's start.
    fn total(&self, counter: CounterId) -> u64;
}

/// The kernel's use of a counter.
#[derive(Clone, Copy, Debug)]
struct KernelUse {
    /// The counter's total when it was allocated.
    base: u64,
    /// The event that makes ticks, if the counter's overflow makes them.
    profiling: Option<SamplingEvent>,
}

/// The counters that the kernel uses, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelUses([Option<KernelUse>; COUNTERS]);

/// The counters of all processes and of the kernel.
#[derive(Debug, Default)]
pub struct Pmc {
    processes: Vec<Process>,
    /// The number of families of processes so far.
    families: u64,
    kernel: KernelUses,
}

impl Pmc {
    /// Carries out `call`.
    ///
    /// # Errors
    /// The errors of `PMC.md`. After an error, nothing has changed.
    pub fn call(&mut self, call: &Call, totals: &dyn Totals) -> Result<Called, Errno> {
        let returned = |returned| Called { returned, value: 0 };
        match call.function {
            Function::NumCounters => Ok(returned(NUMBER)),
            Function::CounterType => counter_type(call.counter, totals).map(returned),
            Function::AllocKernel
            | Function::FreeKernel
            | Function::StartProfiling
            | Function::StopProfiling => self.kernel_call(call, totals).map(|()| returned(0)),
            Function::Value if call.pid == KERNEL => {
                let value = self.kernel_value(call, totals)?;
                Ok(Called { returned: 0, value })
            }
            _ if call.pid < 1 => Err(Errno::EINVAL),
            Function::Value => {
                let children = match call.flags {
                    0 => false,
                    VALUE_FLAGS_CHILDREN => true,
                    _ => return Err(Errno::EINVAL),
                };
                let id = counter(call)?;
                let process = self.newest(call).ok_or(Errno::ENXIO)?;
                let value = process.value(id, children)?;
                Ok(Called { returned: 0, value })
            }
            Function::IsRunning | Function::IsConfigured | Function::Enabled => {
                Ok(returned(self.is(call).into()))
            }
            Function::SaveContext | Function::RestoreContext => {
                let is_saved = call.function == Function::SaveContext;
                if let Some(process) = self.newest_mut(call) {
                    process.set_saved(is_saved);
                }
                Ok(returned(0))
            }
            Function::Configure => self.configure(call, totals).map(|()| returned(0)),
            Function::Enable | Function::Disable => self.switch(call).map(|()| returned(0)),
            Function::Accumulate => self.accumulate(call).map(|()| returned(0)),
        }
    }

    /// Adds `counted` to its process. True if that process has counters.
    pub fn count(&mut self, counted: &Counted) -> bool {
        let Some(process) = self.met(counted.process, counted.parent) else {
            return false;
        };
        process.count(&counted.counts);
        true
    }

    /// Notes that process `key` lives, and has this parent. If it is met for the first time, it gets the counters that it has inherited. True
    /// if it has counters.
    pub fn meet(&mut self, key: ProcessKey, parent: Option<Parent>) -> bool {
        self.met(key, parent).is_some()
    }

    fn met(&mut self, key: ProcessKey, parent: Option<Parent>) -> Option<&mut Process> {
        if !self.processes.iter().any(|process| process.is(key)) {
            self.forget_predecessors(key);
            self.inherit(key, parent);
        }
        let mut newest = self.processes.iter_mut().rev();
        let process = newest.find(|process| process.is(key))?;
        process.meet(key, parent.map(|parent| parent.key));
        Some(process)
    }

    /// Notes that `call` has changed which counters its process has enabled. `has_forked` says whether the process has forked others that live, or
    /// that this is unknown. From now on processes of its family may have inherited other counters than those of the process that adopts them.
    pub fn diverge(&mut self, call: &Call, has_forked: bool) {
        let Some(index) = (self.processes.iter()).rposition(|process| is_meant(process, call))
        else {
            return;
        };
        let family = self.processes.get(index).map(Process::family);
        for (other, process) in self.processes.iter_mut().enumerate() {
            if other == index {
                process.set_others(has_forked);
            } else if Some(process.family()) == family {
                process.set_others(true);
            }
        }
    }

    /// Notes that process `pid` has ended, which was started at `started`. `None` stands for a process that has never been seen. The process
    /// need not have counters.
    pub fn end(&mut self, pid: i32, started: Option<u64>) {
        let is_it = |process: &Process| {
            process.pid() == pid && process.key().map(|key| key.started) == started
        };
        while let Some(index) = self.processes.iter().position(is_it) {
            let mut ended = self.processes.remove(index);
            let counts = ended.take_counts();
            let parent = ended.parent();
            let mut others = self.processes.iter_mut();
            if let Some(parent) = others.find(|process| parent.is_some_and(|key| process.is(key))) {
                parent.accumulate(&counts);
            }
        }
    }

    /// Notes that the guest has ended, and all processes with it.
    pub fn end_all(&mut self) {
        *self = Self::default();
    }

    /// The processes that have counters: their pids and their start times. The start time is unknown until a process has been seen.
    pub fn processes(&self) -> impl ExactSizeIterator<Item = (i32, Option<u64>)> {
        let key = |process: &Process| (process.pid(), process.key().map(|key| key.started));
        self.processes.iter().map(key)
    }

    /// The bits of the counters that count for processes now.
    pub fn wanted(&self) -> u32 {
        let wanted = self.processes.iter().map(Process::wanted);
        wanted.fold(0, |all, one| all | one)
    }

    /// The counters that the kernel uses.
    pub fn kernel_counters(&self) -> impl Iterator<Item = CounterId> {
        let pairs = CounterId::ALL.into_iter().zip(&self.kernel.0);
        pairs.filter_map(|(id, used)| used.is_some().then_some(id))
    }

    /// The event that makes ticks, if a counter's overflow makes them.
    pub fn profiling(&self) -> Option<SamplingEvent> {
        self.kernel.0.iter().find_map(|used| (*used)?.profiling)
    }

    /// Notes that something else makes ticks now. Frees the counter whose overflow made them.
    pub fn stop_profiling(&mut self) {
        for used in &mut self.kernel.0 {
            *used = used.filter(|used| used.profiling.is_none());
        }
    }

    /// Which counters the kernel uses now.
    pub fn kernel_uses(&self) -> KernelUses {
        self.kernel
    }

    /// Restores the kernel's use of its counters.
    pub fn set_kernel_uses(&mut self, uses: KernelUses) {
        self.kernel = uses;
    }

    fn newest(&self, call: &Call) -> Option<&Process> {
        let mut newest = self.processes.iter().rev();
        newest.find(|process| is_meant(process, call))
    }

    fn newest_mut(&mut self, call: &Call) -> Option<&mut Process> {
        let mut newest = self.processes.iter_mut().rev();
        newest.find(|process| is_meant(process, call))
    }

    fn kernel_use(&mut self, id: CounterId) -> Result<&mut Option<KernelUse>, Errno> {
        self.kernel.0.get_mut(id.number()).ok_or(Errno::EINVAL)
    }

    fn is_kernels(&self, id: CounterId) -> bool {
        self.kernel.0.get(id.number()).is_some_and(Option::is_some)
    }

    fn is(&self, call: &Call) -> bool {
        let process = self.newest(call);
        let id = CounterId::from_number(call.counter.into());
        match (call.function, id) {
            (Function::Enabled, _) => {
                let is_kernel = self.kernel.0.iter().any(Option::is_some);
                let mut all = CounterId::ALL.into_iter();
                let has_any = process.is_some_and(|process| all.any(|id| process.is_enabled(id)));
                is_kernel || has_any
            }
            (Function::IsRunning, Some(id)) => {
                self.is_kernels(id) || process.is_some_and(|process| process.is_enabled(id))
            }
            (_, Some(id)) => {
                self.is_kernels(id) || process.is_some_and(|process| process.is_configured(id))
            }
            (_, None) => false,
        }
    }

    fn configure(&mut self, call: &Call, totals: &dyn Totals) -> Result<(), Errno> {
        let id = configured(call, totals)?;
        if self.is_kernels(id) {
            return Err(Errno::EBUSY);
        }
        if self.newest(call).is_none() {
            self.families = self.families.wrapping_add(1);
            self.add(Process::new(call.pid, call.time, self.families))?;
        }
        let process = self.newest_mut(call).ok_or(Errno::ENXIO)?;
        process.configure(id)
    }

    fn switch(&mut self, call: &Call) -> Result<(), Errno> {
        let id = counter(call)?;
        if call.function == Function::Disable {
            let process = self.newest_mut(call).ok_or(Errno::ENXIO)?;
            return process.disable(id);
        }
        if self.is_kernels(id) {
            return Err(Errno::EBUSY);
        }
        let process = self.newest_mut(call).ok_or(Errno::ENXIO)?;
        process.enable(id, call.time)
    }

    fn accumulate(&mut self, call: &Call) -> Result<(), Errno> {
        if call.parent < 1 {
            return Err(Errno::EINVAL);
        }
        let parent = Call {
            pid: call.parent,
            ..*call
        };
        if self.newest(&parent).is_none() {
            return Ok(());
        }
        let Some(exiting) = self.newest_mut(call) else {
            return Ok(());
        };
        let counts = exiting.take_counts();
        if let Some(parent) = self.newest_mut(&parent) {
            parent.accumulate(&counts);
        }
        Ok(())
    }

    fn kernel_call(&mut self, call: &Call, totals: &dyn Totals) -> Result<(), Errno> {
        match call.function {
            Function::AllocKernel | Function::StartProfiling => {
                let id = configured(call, totals)?;
                let profiling = (call.function == Function::StartProfiling)
                    .then(|| sampling_event(call, id, totals))
                    .transpose()?;
                self.check_free(id, profiling.is_some())?;
                *self.kernel_use(id)? = Some(KernelUse {
                    base: totals.total(id),
                    profiling,
                });
            }
            Function::FreeKernel => match self.kernel_use(counter(call)?)? {
                None => return Err(Errno::ENXIO),
                Some(used) if used.profiling.is_some() => return Err(Errno::EBUSY),
                used => *used = None,
            },
            _ => match self.kernel_use(counter(call)?)? {
                used if used.is_some_and(|used| used.profiling.is_some()) => *used = None,
                _ => return Err(Errno::ENXIO),
            },
        }
        Ok(())
    }

    /// Whether the kernel may take this counter, for profiling or not.
    fn check_free(&self, id: CounterId, for_profiling: bool) -> Result<(), Errno> {
        let used = self.kernel.0.get(id.number()).copied().flatten();
        if for_profiling && used.is_some_and(|used| used.profiling.is_some()) {
            return Err(Errno::EINPROGRESS);
        }
        // Only one counter can make ticks.
        let has_source = for_profiling && self.profiling().is_some();
        let mut processes = self.processes.iter();
        if has_source || used.is_some() || processes.any(|process| process.is_configured(id)) {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    fn kernel_value(&self, call: &Call, totals: &dyn Totals) -> Result<u64, Errno> {
        let id = counter(call)?;
        if call.flags & !VALUE_FLAGS_CHILDREN != 0 {
            return Err(Errno::EINVAL);
        }
        let used = self.kernel.0.get(id.number()).copied().flatten();
        let base = used.ok_or(Errno::ENXIO)?.base;
        Ok(totals.total(id).saturating_sub(base))
    }

    fn add(&mut self, process: Process) -> Result<(), Errno> {
        if self.processes.len() >= MAX_PROCESSES {
            return Err(Errno::ENOMEM);
        }
        self.processes.push(process);
        Ok(())
    }

    /// Forgets other processes that had the pid of `key` before.
    fn forget_predecessors(&mut self, key: ProcessKey) {
        let ended = self.processes().filter(|(pid, _)| *pid == key.pid);
        for (pid, started) in ended.collect::<Vec<_>>() {
            self.end(pid, started);
        }
    }

    /// Gives a process that is seen for the first time the counters that it has inherited, if a process with counters has forked it.
    fn inherit(&mut self, key: ProcessKey, parent: Option<Parent>) {
        let Some(parent) = parent else { return };
        let mut processes = self.processes.iter();
        let forked = processes
            .find(|process| process.is(parent.key))
            .filter(|process| !(parent.may_have_adopted && process.has_others()))
            .and_then(|process| process.fork(key));
        if let Some(forked) = forked {
            // Without room for it, the process isn't counted.
            let _ = self.add(forked);
        }
    }
}

/// Whether a call is about `process`.
fn is_meant(process: &Process, call: &Call) -> bool {
    process.pid() == call.pid && process.key().is_none_or(|key| key.started <= call.time)
}

fn counter(call: &Call) -> Result<CounterId, Errno> {
    CounterId::from_number(call.counter.into()).ok_or(Errno::EINVAL)
}

/// The counter of a configuration, which has to name the counter's event.
fn configured(call: &Call, totals: &dyn Totals) -> Result<CounterId, Errno> {
    let id = counter(call)?;
    if CounterId::from_number(call.event.into()) != Some(id) || !totals.can_count(id) {
        return Err(Errno::ENODEV);
    }
    Ok(id)
}

/// The event that makes ticks when the counter overflows at the call's reset value.
fn sampling_event(call: &Call, id: CounterId, totals: &dyn Totals) -> Result<SamplingEvent, Errno> {
    let kind = event_kind(id).filter(|kind| totals.can_sample(*kind));
    let kind = kind.ok_or(Errno::ENODEV)?;
    SamplingEvent::new(kind, call.reset_value).ok_or(Errno::EINVAL)
}

/// The kind of events whose ticks `counter` makes by its overflow; `None` if it can't.
pub fn event_kind(counter: CounterId) -> Option<EventKind> {
    match counter {
        CounterId::PortReads => Some(EventKind::PortRead),
        CounterId::PortWrites => Some(EventKind::PortWrite),
        CounterId::MmioReads => Some(EventKind::MmioRead),
        CounterId::MmioWrites => Some(EventKind::MmioWrite),
        CounterId::CpuTime => Some(EventKind::GuestTime),
        CounterId::Exits => Some(EventKind::KvmExits),
        CounterId::Halts => Some(EventKind::Halt),
        CounterId::PageFaults => Some(EventKind::PageFaults),
        CounterId::Cycles => Some(EventKind::Cycles),
        CounterId::Instructions => Some(EventKind::Instructions),
        CounterId::Branches => Some(EventKind::Branches),
        CounterId::BranchMisses => Some(EventKind::BranchMisses),
        CounterId::CacheReferences => Some(EventKind::CacheReferences),
        CounterId::CacheMisses => Some(EventKind::CacheMisses),
        CounterId::Ticks
        | CounterId::Interrupted
        | CounterId::Interrupts
        | CounterId::TlbFlushes
        | CounterId::Emulated => None,
    }
}

fn counter_type(counter: i32, totals: &dyn Totals) -> Result<i64, Errno> {
    if counter == -1 {
        let all = CounterId::ALL.into_iter();
        let sources = all.filter(|id| totals.can_count(*id));
        let bits = sources.fold(0, |bits, id| bits | id.source().bit());
        return Ok(bits.into());
    }
    let id = CounterId::from_number(counter.into()).ok_or(Errno::EINVAL)?;
    Ok(id.source() as i64)
}
