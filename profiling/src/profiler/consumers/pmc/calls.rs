//! Calls of pmc(9).

use std::collections::BTreeSet;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{Call, CounterId, Function, VALUE_FLAGS_CHILDREN};
use kvmprof_devices::endpoint::IoctlReply;
use kvmprof_devices::profiling::pmc::{Called, Parent, Totals, event_kind};
use kvmprof_introspection::ListedProcess;
use kvmprof_recording::{EventKind, SamplingEvent};

use super::super::{Context, Side, check_event};
use super::PmcConsumer;
use crate::clock::TickSource;
use crate::counters::{MachineCounters, process_key};

impl PmcConsumer {
    /// Gives processes that `call` is about, and those that they have forked, the counters that they have inherited until now: no tick or
    /// exit may have found them yet, and the call may change what is inherited. True if the process of `call` has forked others that live, or if
    /// that is unknown.
    fn settle(&mut self, call: &Call, context: &Context<'_>) -> bool {
        let processes = self.pmc.processes().map(|(pid, _)| pid);
        let mut pids: BTreeSet<i32> = processes.collect();
        let is_known = only_asks(call.function) && pids.contains(&call.pid);
        if pids.is_empty() || call.pid < 1 || is_known {
            return true;
        }
        let all = context.list_processes().unwrap_or_default();
        // A parent comes before those that it has forked.
        for one in &all {
            let (process, parent) = (process_key(&one.process), process_key(&one.parent));
            let is_meant = pids.contains(&process.pid) || pids.contains(&parent.pid);
            let parent = Parent {
                key: parent,
                may_have_adopted: one.may_be_adopted,
            };
            if is_meant && self.pmc.meet(process, Some(parent)) {
                pids.insert(process.pid);
                self.instances.insert(process, one.process);
            }
        }
        self.follow();
        has_forked(&all, call)
    }

    /// Carries out the call in `data`.
    pub fn call(&mut self, data: &[u8], context: &Context<'_>) -> Result<IoctlReply, Errno> {
        if data.len() < Call::SIZE {
            return Err(Errno::EFAULT);
        }
        let mut call = Call::decode(data).ok_or(Errno::EINVAL)?;
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        let has_forked = self.settle(&call, context);
        // The first counter takes the present source of ticks, or the clock.
        if self.processes_wanted == 0 {
            self.guests_source = context.ticks();
        }
        let called = match call.function {
            Function::StartProfiling => self.start_profiling(&call, context)?,
            // The guest's clients end only what the guest has started.
            Function::StopProfiling if context.side == Side::Guest && self.profiles_for_host() => {
                return Err(Errno::EBUSY);
            }
            _ => self.pmc.call(&call, &HostTotals::new(context))?,
        };
        if matches!(
            call.function,
            Function::Configure | Function::Enable | Function::Disable
        ) {
            self.pmc.diverge(&call, has_forked);
        }
        call.value = called.value;
        if !only_asks(call.function) {
            self.follow();
        }
        Ok(IoctlReply {
            value: called.returned,
            data: call.encode().to_vec(),
        })
    }

    /// Whether a counter's overflow makes ticks, and the host has started that.
    pub fn profiles_for_host(&self) -> bool {
        self.profiles_for_host && self.pmc.profiling().is_some()
    }

    fn start_profiling(&mut self, call: &Call, context: &Context<'_>) -> Result<Called, Errno> {
        let is_host = context.side == Side::Host;
        let uses = self.pmc.kernel_uses();
        if is_host && !self.profiles_for_host() {
            // What the guest has started doesn't block the host.
            self.pmc.stop_profiling();
        }
        let called = self.check_source(call, context);
        let called = called.and_then(|()| self.pmc.call(call, &HostTotals::new(context)));
        match called {
            Ok(_) => self.profiles_for_host = is_host,
            Err(_) => self.pmc.set_kernel_uses(uses),
        }
        called
    }

    /// Checks that the source of ticks that `call` asks for may make them.
    fn check_source(&self, call: &Call, context: &Context<'_>) -> Result<(), Errno> {
        if self.pmc.profiling().is_some() {
            return Ok(());
        }
        let counter = CounterId::from_number(call.counter.into()).ok_or(Errno::EINVAL)?;
        let event = event_kind(counter).and_then(|kind| SamplingEvent::new(kind, call.reset_value));
        event.map_or(Ok(()), |event| context.can_count(TickSource::Event(event)))
    }
}

/// Whether calls of `function` change nothing.
fn only_asks(function: Function) -> bool {
    matches!(
        function,
        Function::NumCounters
            | Function::CounterType
            | Function::Value
            | Function::IsRunning
            | Function::IsConfigured
            | Function::Enabled
    )
}

/// Whether the call in `data` depends on which processes have ended.
pub fn asks_for_children(data: &[u8]) -> bool {
    Call::decode(data).is_some_and(|call| match call.function {
        Function::Value => call.flags & VALUE_FLAGS_CHILDREN != 0,
        Function::Accumulate => true,
        // A counter of a process that has ended is free.
        Function::AllocKernel | Function::StartProfiling => true,
        _ => false,
    })
}

/// Whether the process of `call` has forked some of `all`, or that is unknown.
fn has_forked(all: &[ListedProcess], call: &Call) -> bool {
    // If it was started later than the call was made, the caller has ended.
    let is_it =
        |one: &&ListedProcess| one.process.pid == call.pid && one.process.started <= call.time;
    let caller = all.iter().find(is_it);
    caller.is_none_or(|caller| {
        let mut others = all.iter();
        others.any(|one| caller.process.is_same(&one.parent))
    })
}

/// The counts of this host.
pub struct HostTotals<'a> {
    counters: &'a MachineCounters,
    /// The number of ticks that each vCPU's clock has made.
    ticks: Vec<u64>,
}

impl<'a> HostTotals<'a> {
    /// The counts at this moment.
    pub fn new(context: &Context<'a>) -> Self {
        Self {
            counters: &context.machine.counters,
            ticks: context.clocks.ticks(),
        }
    }
}

impl Totals for HostTotals<'_> {
    fn can_count(&self, counter: CounterId) -> bool {
        self.counters.values(counter, &self.ticks).is_ok()
    }

    fn can_sample(&self, kind: EventKind) -> bool {
        check_event(kind).is_ok()
    }

    fn total(&self, counter: CounterId) -> u64 {
        let values = self.counters.values(counter, &self.ticks);
        let sum = |sum: u64, one: u64| sum.saturating_add(one);
        values.map_or(0, |values| values.into_iter().fold(0, sum))
    }
}
