//! pmc: calls of clients, and the counts that the vCPUs' threads have made for processes (`crate::counters`).

mod accounts;
mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::Ledger;
use kvmprof_abi::pmc::{PMC_ACCOUNT, PMC_CALL};
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, IoctlReply};
use kvmprof_devices::profiling::Pmc;
use kvmprof_devices::profiling::pmc::{Account, ProcessKey};
use kvmprof_introspection::ProcessInstance;
use kvmprof_recording::Ticks;
use kvmprof_recording::status::{ConsumerStatus, PmcStatus};

use super::documents::Documents;
use super::{
    ClockNeeds, Command, Consumer, Context, Device, Preparation, SymbolSources, TicksBefore,
};
use crate::clock::TickSource;
use crate::counters::{KnownProcess, ProcessCounts};
use calls::asks_for_children;

/// The device, and the handles that clients have open.
#[derive(Debug)]
pub struct PmcConsumer {
    pmc: Pmc,
    counts: Arc<ProcessCounts>,
    /// The handles that clients have open. There may be very many, and they cost no time at ticks or at other requests.
    open: BTreeSet<Handle>,
    /// The accounts of handles that count for all processes, [`accounts::MAX_ACCOUNTS`] at most.
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

    fn take_restart(&mut self, _block: &Arc<[u8]>) {
        self.absorb();
        let processes: Vec<_> = self.pmc.processes().collect();
        for (pid, started) in processes {
            self.pmc.end(pid, started);
        }
        self.follow();
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
    fn before_open(&self, minor: u16, _context: &Context<'_>) -> Result<Preparation, Errno> {
        match minor {
            0 => Ok(Preparation::default()),
            _ => Err(Errno::ENXIO),
        }
    }

    fn before_read(&self, handle: Handle) -> Result<Preparation, Errno> {
        // The read may continue a document that has been made already.
        let ticks = if self.documents.has(handle) {
            TicksBefore::Any
        } else {
            TicksBefore::All
        };
        Ok(ticks.into())
    }

    fn before_ioctl(
        &self,
        _handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        let ticks = match command.number {
            // Counts of a process that has just ended are its parent's.
            PMC_CALL if asks_for_children(command.data) => TicksBefore::AllAndEnds,
            _ => context.ticks_before_list(),
        };
        Ok(ticks.into())
    }

    fn open(&mut self, handle: Handle, _minor: u16, _context: &Context<'_>) -> Result<(), Errno> {
        self.open.insert(handle);
        Ok(())
    }

    fn read(
        &mut self,
        handle: Handle,
        limit: usize,
        context: &Context<'_>,
    ) -> Result<Vec<u8>, Errno> {
        self.read_document(handle, limit, context)
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<IoctlReply, Errno> {
        match command.number {
            PMC_CALL => self.call(command.data, context),
            PMC_ACCOUNT => self.account(handle, command.argument, context),
            _ => Err(Errno::EINVAL),
        }
    }

    fn close(&mut self, handle: Handle) {
        self.open.remove(&handle);
        self.documents.forget(handle);
        if self.accounts.remove(&handle).is_some() {
            self.follow();
        }
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::pmc::{Call, CounterId, Function};
    use kvmprof_devices::profiling::pmc::Totals;
    use kvmprof_recording::EventKind;

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

    /// Processes of the next kernel have the same ids.
    #[test]
    fn a_restart_ends_all_processes() {
        let mut consumer = PmcConsumer::new(Arc::new(ProcessCounts::new(1)));
        for pid in [7, 8] {
            let call = Call::new(Function::Configure, pid, 0);
            consumer.pmc.call(&call, &Host).unwrap();
        }
        assert_eq!(consumer.pmc.processes().len(), 2);
        consumer.take_restart(&Arc::default());
        assert_eq!(consumer.pmc.processes().len(), 0);
    }
}
