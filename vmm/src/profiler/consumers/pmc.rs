//! pmc: calls of clients, and the counts that the vCPUs' threads have made for processes (`crate::counters`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::Ledger;
use kvmprof_abi::pmc::{
    ALL_COUNTERS, Call, CounterId, Function, PMC_ACCOUNT, PMC_CALL, VALUE_FLAGS_CHILDREN,
};
use kvmprof_abi::text::task_name;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, IoctlReply, Readiness};
use kvmprof_devices::profiling::Pmc;
use kvmprof_devices::profiling::pmc::{Account, Called, ProcessKey, Row, Totals, event_kind};
use kvmprof_introspection::ProcessInstance;
use kvmprof_recording::counters::ProcessCounters;
use kvmprof_recording::status::{ConsumerStatus, PmcStatus};
use kvmprof_recording::{EventKind, SamplingEvent, Ticks};

use super::documents::Documents;
use super::{
    Client, ClockNeeds, Consumer, Context, Device, Preparation, Reply, Request, SymbolSources,
    TicksBefore, check_event,
};
use crate::clock::TickSource;
use crate::counters::{KnownProcess, MachineCounters, ProcessCounts, process_key};

/// Maximum number of clients that count for all processes: the account of each may take most of a megabyte, and its document as much.
const MAX_ACCOUNTS: usize = 32;

/// The device, and the handles that clients have open.
#[derive(Debug)]
pub struct PmcConsumer {
    pmc: Pmc,
    counts: Arc<ProcessCounts>,
    /// The handles that clients have open. There may be very many, and they cost no time at ticks or at other requests.
    open: BTreeSet<Handle>,
    /// The accounts of handles that count for all processes, [`MAX_ACCOUNTS`] at most.
    accounts: BTreeMap<Handle, Account>,
    documents: Documents,
    /// The bits of the counters that count for processes with counters of their own, and of all counters that count.
    processes_wanted: u32,
    wanted: u32,
    /// The processes that have counters and have been found.
    instances: BTreeMap<ProcessKey, ProcessInstance>,
    watched: Vec<KnownProcess>,
    /// The sources of ticks when the first process began to count for itself, and when the first client of the host began to count for all
    /// processes. The latter needn't be the guest's.
    guests_source: Option<TickSource>,
    hosts_source: Option<TickSource>,
    /// Whether the overflow of a counter that makes ticks was started by the host, and not by the guest.
    profiles_for_host: bool,
    ledger: Ledger,
}

impl PmcConsumer {
    /// The device of a guest whose vCPUs' threads count in `counts`.
    pub fn new(counts: Arc<ProcessCounts>) -> Self {
        Self {
            pmc: Pmc::default(),
            counts,
            open: BTreeSet::new(),
            accounts: BTreeMap::new(),
            documents: Documents::default(),
            processes_wanted: 0,
            wanted: 0,
            instances: BTreeMap::new(),
            watched: Vec::new(),
            guests_source: None,
            hosts_source: None,
            profiles_for_host: false,
            ledger: Ledger::default(),
        }
    }

    /// Takes what the vCPUs' threads have counted and found.
    fn absorb(&mut self) {
        let Self {
            pmc,
            counts,
            accounts,
            instances,
            ..
        } = self;
        let before = pmc.processes().len();
        let mut is_other = false;
        let ended = counts.take(|one| {
            let instance = one.instance;
            if pmc.count(&one.counted) {
                is_other |= instances.insert(one.counted.process, instance) != Some(instance);
            }
            for account in accounts.values_mut() {
                account.count(&one.counted);
            }
        });
        is_other |= !ended.is_empty() || pmc.processes().len() != before;
        for KnownProcess { pid, instance } in ended {
            pmc.end(pid, instance.map(|instance| instance.started));
        }
        // Very many processes may have counters, and this is done at each request.
        if is_other {
            self.follow();
        }
    }

    /// Makes the vCPUs' threads count what is needed now, and watch the processes that have counters.
    fn follow(&mut self) {
        let mut instances = BTreeMap::new();
        let mut watched = Vec::new();
        for (pid, started) in self.pmc.processes() {
            let key = started.map(|started| ProcessKey { pid, started });
            let instance = key.and_then(|key| self.instances.get(&key).copied());
            watched.push(KnownProcess { pid, instance });
            instances.extend(key.zip(instance));
        }
        self.instances = instances;
        if watched != self.watched {
            self.counts.watch(watched.clone());
            self.watched = watched;
        }
        let accounts = self.accounts.values().map(Account::counters);
        self.processes_wanted = self.pmc.wanted();
        self.wanted = accounts.fold(self.processes_wanted, |all, one| all | one);
        self.counts.want(self.wanted);
    }

    /// Gives processes that `call` is about, and those that they have forked, the counters that they have inherited until now: no tick or
    /// exit may have found them yet, and the call may change what is inherited.
    fn settle(&mut self, call: &Call, context: &Context<'_>) {
        let processes = self.pmc.processes().map(|(pid, _)| pid);
        let mut pids: BTreeSet<i32> = processes.collect();
        let is_known = only_asks(call.function) && pids.contains(&call.pid);
        if pids.is_empty() || call.pid < 1 || is_known {
            return;
        }
        // A parent comes before those that it has forked.
        for one in context.list_processes().unwrap_or_default() {
            let (process, parent) = (process_key(&one.process), process_key(&one.parent));
            let is_meant = pids.contains(&process.pid) || pids.contains(&parent.pid);
            if is_meant && self.pmc.meet(process, Some(parent)) {
                pids.insert(process.pid);
                self.instances.insert(process, one.process);
            }
        }
        self.follow();
    }

    fn call(&mut self, data: &[u8], context: &Context<'_>) -> Result<IoctlReply, Errno> {
        if data.len() < Call::SIZE {
            return Err(Errno::EFAULT);
        }
        let mut call = Call::decode(data).ok_or(Errno::EINVAL)?;
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        self.settle(&call, context);
        // The first counter takes the present source of ticks, or the clock.
        if self.processes_wanted == 0 {
            self.guests_source = context.ticks();
        }
        let called = match call.function {
            Function::StartProfiling => self.start_profiling(&call, context)?,
            // The guest's clients end only what the guest has started.
            Function::StopProfiling
                if context.client == Client::Guest && self.profiles_for_host() =>
            {
                return Err(Errno::EBUSY);
            }
            _ => self.pmc.call(&call, &HostTotals::new(context))?,
        };
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
    fn profiles_for_host(&self) -> bool {
        self.profiles_for_host && self.pmc.profiling().is_some()
    }

    fn start_profiling(&mut self, call: &Call, context: &Context<'_>) -> Result<Called, Errno> {
        let is_host = context.client == Client::Host;
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

    fn account(
        &mut self,
        handle: Handle,
        counters: i64,
        context: &Context<'_>,
    ) -> Result<IoctlReply, Errno> {
        let counters = u32::try_from(counters).map_err(|_| Errno::EINVAL)?;
        if counters & !ALL_COUNTERS != 0 {
            return Err(Errno::EINVAL);
        }
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        let totals = HostTotals::new(context);
        let mut chosen = CounterId::ALL.into_iter();
        if chosen.any(|id| counters & id.bit() != 0 && !totals.can_count(id)) {
            return Err(Errno::ENODEV);
        }
        if !self.open.contains(&handle) {
            return Err(Errno::EBADF);
        }
        let others = self.accounts.keys().filter(|other| **other != handle);
        if counters != 0 && others.count() >= MAX_ACCOUNTS {
            return Err(Errno::ENOMEM);
        }
        if self.accounts.is_empty() {
            self.hosts_source = context.ticks();
        }
        if counters == 0 {
            self.accounts.remove(&handle);
        } else {
            self.accounts.insert(handle, Account::new(counters));
        }
        self.follow();
        Ok(IoctlReply::default())
    }

    fn read(
        &mut self,
        handle: Handle,
        limit: usize,
        context: &Context<'_>,
    ) -> Result<Vec<u8>, Errno> {
        if !self.open.contains(&handle) {
            return Err(Errno::EBADF);
        }
        if !self.documents.has(handle) {
            let mut counters = context.machine.counters.read(&context.clocks.ticks());
            counters.processes = self.accounts.get(&handle).map(processes);
            let text = serde_json::to_vec(&counters).map_err(|_| Errno::EIO)?;
            self.documents.begin(handle, text)?;
        }
        Ok(self.documents.read(handle, limit))
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
fn asks_for_children(data: &[u8]) -> bool {
    Call::decode(data).is_some_and(|call| match call.function {
        Function::Value => call.flags & VALUE_FLAGS_CHILDREN != 0,
        Function::Accumulate => true,
        // A counter of a process that has ended is free.
        Function::AllocKernel | Function::StartProfiling => true,
        _ => false,
    })
}

/// The counts of each process.
fn processes(account: &Account) -> Vec<ProcessCounters> {
    let process = |(key, row): (&ProcessKey, &Row)| {
        let counts = CounterId::ALL.into_iter().zip(row.counts);
        let counts = counts.map(|(id, count)| account.has(id).then_some(count));
        ProcessCounters {
            pid: key.pid,
            comm: task_name(&row.comm).collect(),
            started: key.started,
            counts: counts.collect(),
        }
    };
    account.rows().map(process).collect()
}

/// The counts of this host.
struct HostTotals<'a> {
    counters: &'a MachineCounters,
    /// The number of ticks that each vCPU's clock has made.
    ticks: Vec<u64>,
}

impl<'a> HostTotals<'a> {
    fn new(context: &Context<'a>) -> Self {
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

impl Consumer for PmcConsumer {
    fn needs(&self) -> ClockNeeds {
        let event = self.pmc.profiling().map(TickSource::Event);
        let hosts_event = event.filter(|_| self.profiles_for_host());
        let hosts = hosts_event.or(self.hosts_source.filter(|_| !self.accounts.is_empty()));
        let guests = event.or(self.guests_source.filter(|_| self.wanted != 0));
        ClockNeeds {
            source: hosts.or(guests),
            gives_way: hosts.is_none(),
            exits: true,
            ..ClockNeeds::default()
        }
    }

    fn take(&mut self, ticks: &Ticks, _frames: &[u64]) {
        if self.needs().source.is_some() {
            let ledger = &mut self.ledger;
            ledger.ticks += ticks.total();
            ledger.recorded += u64::from(ticks.sample.is_some());
            ledger.merged += ticks.idle;
            ledger.ungathered += ticks.ungathered;
            ledger.stolen += ticks.stolen;
            ledger.lost += ticks.lost;
        }
    }

    fn follow(&mut self, source: Option<TickSource>) {
        let event = self.pmc.profiling().map(TickSource::Event);
        if event.is_some() && event != source {
            self.pmc.stop_profiling();
        }
    }

    fn advance(&mut self, _sources: &mut SymbolSources<'_>) {
        self.absorb();
    }

    fn end(&mut self) {
        self.absorb();
        self.pmc.end_all();
        self.follow();
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        let kernel = self.pmc.kernel_counters().map(|id| id.name().to_owned());
        let kernel: Vec<String> = kernel.collect();
        let processes = self.pmc.processes().len();
        let accounts = self.accounts.len();
        if kernel.is_empty() && processes == 0 && accounts == 0 {
            return Vec::new();
        }
        let status = PmcStatus::new(processes, accounts, kernel, self.ledger);
        vec![ConsumerStatus::Pmc(status)]
    }

    fn device_number(&self) -> Option<u16> {
        Some(device::PMC)
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }
}

impl Device for PmcConsumer {
    fn prepare(
        &self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        let ticks = match *request {
            Request::Open { minor } if minor != 0 => return Err(Errno::ENXIO),
            Request::Open { .. } | Request::Close => TicksBefore::Any,
            // The read continues a document that has been made already.
            Request::Read { .. } if self.documents.has(handle) => TicksBefore::Any,
            Request::Read { .. } => TicksBefore::All,
            // Counts of a process that has just ended are its parent's.
            Request::Ioctl {
                command: PMC_CALL,
                data,
                ..
            } if asks_for_children(data) => TicksBefore::AllAndEnds,
            Request::Ioctl { .. } => context.ticks_before_list(),
        };
        Ok(Preparation::ticks(ticks))
    }

    fn carry_out(
        &mut self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Reply, Errno> {
        match *request {
            Request::Open { .. } => {
                self.open.insert(handle);
                Ok(Reply::Done)
            }
            Request::Read { limit } => self.read(handle, limit, context).map(Reply::Read),
            Request::Ioctl {
                command,
                argument,
                data,
            } => {
                let reply = match command {
                    PMC_CALL => self.call(data, context)?,
                    PMC_ACCOUNT => self.account(handle, argument, context)?,
                    _ => return Err(Errno::EINVAL),
                };
                Ok(Reply::Ioctl(reply))
            }
            Request::Close => {
                self.open.remove(&handle);
                self.documents.forget(handle);
                if self.accounts.remove(&handle).is_some() {
                    self.follow();
                }
                Ok(Reply::Done)
            }
        }
    }

    fn readiness(&self, _handle: Handle) -> Readiness {
        // No request ever waits.
        Readiness {
            readable: true,
            ..Readiness::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that can count everything.
    struct Host;

    impl Totals for Host {
        fn can_count(&self, _counter: CounterId) -> bool {
            true
        }

        fn can_sample(&self, _kind: EventKind) -> bool {
            false
        }

        fn total(&self, _counter: CounterId) -> u64 {
            0
        }
    }

    #[test]
    fn the_clock_stops_with_the_last_process_that_counts() {
        let counts = Arc::new(ProcessCounts::new(1));
        let mut consumer = PmcConsumer::new(Arc::clone(&counts));
        consumer.guests_source = TickSource::clock(100);
        assert_eq!(consumer.needs().source, None);
        for function in [Function::Configure, Function::Enable] {
            let call = Call::new(function, 7, 0);
            consumer.pmc.call(&call, &Host).unwrap();
        }
        consumer.follow();
        assert_eq!(consumer.needs().source, TickSource::clock(100));
        counts.end(KnownProcess {
            pid: 7,
            instance: None,
        });
        consumer.absorb();
        assert_eq!(consumer.needs().source, None);
    }
}
