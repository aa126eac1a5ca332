//! pmc: calls of clients, and what the vCPUs' threads have counted for processes (`crate::counters`).

use std::collections::BTreeMap;
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
use kvmprof_devices::profiling::pmc::{Account, ProcessKey, Row, Totals, event_kind};
use kvmprof_introspection::ProcessInstance;
use kvmprof_recording::counters::ProcessCounters;
use kvmprof_recording::status::{ConsumerStatus, PmcStatus};
use kvmprof_recording::{EventKind, SamplingEvent, Ticks};

use super::{
    Client, ClockNeeds, Consumer, Context, Device, Preparation, Reply, Request, SymbolSources,
    TicksBefore, check_event,
};
use crate::clock::TickSource;
use crate::counters::{KnownProcess, MachineCounters, ProcessCounts};

/// Maximum number of clients that have all processes counted: each may take most of a megabyte, and as much for its document.
const MAX_ACCOUNTS: usize = 32;

/// What a client has open.
#[derive(Debug, Default)]
struct Open {
    account: Option<Account>,
    /// The document that is being read, and how much of it has been.
    document: Option<(Vec<u8>, usize)>,
}

/// The device, and what clients have open.
#[derive(Debug)]
pub struct PmcConsumer {
    pmc: Pmc,
    counts: Arc<ProcessCounts>,
    open: BTreeMap<Handle, Open>,
    /// The processes that have counters and were met.
    instances: BTreeMap<ProcessKey, ProcessInstance>,
    watched: Vec<KnownProcess>,
    /// What made the ticks when something began to be counted for a process.
    source: Option<TickSource>,
    /// Whether the host had a counter's overflow make ticks, rather than the guest.
    profiles_for_host: bool,
    ledger: Ledger,
}

impl PmcConsumer {
    /// That of a guest whose vCPUs' threads count in `counts`.
    pub fn new(counts: Arc<ProcessCounts>) -> Self {
        Self {
            pmc: Pmc::default(),
            counts,
            open: BTreeMap::new(),
            instances: BTreeMap::new(),
            watched: Vec::new(),
            source: None,
            profiles_for_host: false,
            ledger: Ledger::default(),
        }
    }

    fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.open.values().filter_map(|open| open.account.as_ref())
    }

    /// The bits of the counters that count for processes.
    fn wanted(&self) -> u32 {
        let accounts = self.accounts().map(Account::counters);
        accounts.fold(self.pmc.wanted(), |all, one| all | one)
    }

    /// Takes in what the vCPUs' threads have counted and found.
    fn absorb(&mut self) {
        let Self {
            pmc,
            counts,
            open,
            instances,
            ..
        } = self;
        let ended = counts.take(|one| {
            pmc.count(&one.counted);
            for account in open.values_mut().filter_map(|open| open.account.as_mut()) {
                account.count(&one.counted);
            }
            if pmc.processes().len() > 0 {
                instances.insert(one.counted.process, one.instance);
            }
        });
        for KnownProcess { pid, instance } in ended {
            pmc.end(pid, instance.map(|instance| instance.started));
        }
        self.follow();
    }

    /// Has the vCPUs' threads count what is wanted now, and watch those who have counters.
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
        self.counts.want(self.wanted());
    }

    fn call(&mut self, data: &[u8], context: &Context<'_>) -> Result<IoctlReply, Errno> {
        if data.len() < Call::SIZE {
            return Err(Errno::EFAULT);
        }
        let mut call = Call::decode(data).ok_or(Errno::EINVAL)?;
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        let is_start = call.function == Function::StartProfiling;
        if is_start && self.pmc.profiling().is_none() {
            let counter = CounterId::from_number(call.counter.into()).ok_or(Errno::EINVAL)?;
            let kind = event_kind(counter);
            if let Some(event) = kind.and_then(|kind| SamplingEvent::new(kind, call.reset_value)) {
                context.can_count(TickSource::Event(event))?;
            }
        }
        self.take_source(context);
        let called = self.pmc.call(&call, &HostTotals::new(context))?;
        if is_start {
            self.profiles_for_host = context.client == Client::Host;
        }
        call.value = called.value;
        self.follow();
        Ok(IoctlReply {
            value: called.returned,
            data: call.encode().to_vec(),
        })
    }

    /// The first counter takes the present source of ticks, or the clock.
    fn take_source(&mut self, context: &Context<'_>) {
        if self.wanted() == 0 {
            self.source = context.ticks();
        }
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
        let others = self.open.iter().filter(|(other, _)| **other != handle);
        let others = others.filter(|(_, open)| open.account.is_some());
        if counters != 0 && others.count() >= MAX_ACCOUNTS {
            return Err(Errno::ENOMEM);
        }
        self.take_source(context);
        let open = self.open.get_mut(&handle).ok_or(Errno::EBADF)?;
        open.account = (counters != 0).then(|| Account::new(counters));
        self.follow();
        Ok(IoctlReply::default())
    }

    fn read(
        &mut self,
        handle: Handle,
        limit: usize,
        context: &Context<'_>,
    ) -> Result<Vec<u8>, Errno> {
        let open = self.open.get_mut(&handle).ok_or(Errno::EBADF)?;
        let (document, read) = match &mut open.document {
            Some(document) => document,
            document => {
                let mut counters = context.machine.counters.read(&context.clocks.ticks());
                counters.processes = open.account.as_ref().map(processes);
                let text = serde_json::to_vec(&counters).map_err(|_| Errno::EIO)?;
                document.insert((text, 0))
            }
        };
        let rest = document.get(*read..).unwrap_or_default();
        let bytes = rest.get(..limit).unwrap_or(rest).to_vec();
        *read += bytes.len();
        if bytes.is_empty() && limit > 0 {
            open.document = None;
        }
        Ok(bytes)
    }
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

/// What was counted of each process.
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

/// What counts on this host.
struct HostTotals<'a> {
    counters: &'a MachineCounters,
    /// How many ticks each vCPU's clock has made.
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
        ClockNeeds {
            source: event.or(self.source.filter(|_| self.wanted() != 0)),
            gives_way: self.accounts().next().is_none()
                && (event.is_none() || !self.profiles_for_host),
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
        let accounts = self.accounts().count();
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
        _context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        let ticks = match *request {
            Request::Open { minor } if minor != 0 => return Err(Errno::ENXIO),
            Request::Open { .. } | Request::Close => TicksBefore::Any,
            Request::Read { .. } => match self.open.get(&handle) {
                // The rest of what was made then.
                Some(open) if open.document.is_some() => TicksBefore::Any,
                _ => TicksBefore::All,
            },
            // Counts of a process that has just ended are its parent's.
            Request::Ioctl {
                command: PMC_CALL,
                data,
                ..
            } if asks_for_children(data) => TicksBefore::AllAndEnds,
            Request::Ioctl { .. } => TicksBefore::All,
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
                self.open.insert(handle, Open::default());
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
                self.follow();
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

    /// A host that can count all.
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
        consumer.source = TickSource::clock(100);
        assert_eq!(consumer.needs().source, None);
        for function in [Function::Configure, Function::Enable] {
            let call = Call::new(function, 7, 0);
            consumer.pmc.call(&call, &Host).unwrap();
        }
        assert_eq!(consumer.needs().source, TickSource::clock(100));
        counts.end(KnownProcess {
            pid: 7,
            instance: None,
        });
        consumer.absorb();
        assert_eq!(consumer.needs().source, None);
    }
}
