//! The consumers, which take ticks. To add a consumer, add a file here with its [`Consumer`] (and [`Device`], if clients can
//! open it), and a line in [`Consumers::new`].

mod client_recorders;
mod device;
pub(super) mod documents;
mod file_recorder;
mod kept_profile;
mod needs;
mod pcs;
mod pmc;
mod prf;
mod profil;
mod rate;
mod recording;

use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use kvmprof_devices::endpoint::Client;
use kvmprof_introspection::ListedProcess;
use kvmprof_recording::status::ConsumerStatus;
use kvmprof_recording::tasks::TaskLook;
use kvmprof_recording::{EventKind, QueueBudget, Ticks};

use super::MachineInfo;
use super::clocks::Clocks;
use super::processes::Processes;
use crate::clock::TickSource;
use crate::config::ProfilingConfig;
use crate::counters::ProcessCounts;
use crate::kernel_events;
use crate::profil::ProfiledProcesses;
use client_recorders::ClientRecorders;
use pcs::PcsConsumer;
use pmc::PmcConsumer;
use prf::PrfConsumer;
use profil::ProfilConsumer;

pub use device::{Command, Device, Preparation, Reply, Request, TicksBefore};
pub use file_recorder::FileRecorder;
pub use needs::{AllNeeds, ClockNeeds, LookNeeds};
pub use recording::{SymbolSources, recording_info};

/// The side of a client that opens a device. Devices that the guest has opened never block the host's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A client of the host socket.
    Host,
    /// The guest, through its ports.
    Guest,
}

impl From<Client> for Side {
    fn from(client: Client) -> Self {
        match client {
            Client::Host | Client::HostStatus => Self::Host,
            Client::Guest(_) => Self::Guest,
        }
    }
}

/// A consumer, which takes ticks.
pub trait Consumer {
    /// What the consumer needs of the clocks now.
    fn needs(&self) -> ClockNeeds;

    /// Takes `ticks`, and the frames of their sample's stack, whether it needs any or not.
    fn take(&mut self, ticks: &Ticks, frames: &[u64]);

    /// Takes a look at the guest's tasks, whether it needs any or not.
    fn take_look(&mut self, _look: &TaskLook) {}

    /// Takes a block of a recording: of pauses, or what samples refer to, which come after it.
    fn take_block(&mut self, _block: &Arc<[u8]>) {}

    /// Takes a block of a recording with the time of the guest's restart. The kernel's symbols come again after it.
    fn take_restart(&mut self, _block: &Arc<[u8]>) {}

    /// Notes that `source` makes the ticks from now on.
    fn follow(&mut self, _source: Option<TickSource>) {}

    /// Does periodic work, and work that waits for the kernel's symbols. Called every few ms while ticks come.
    fn advance(&mut self, _sources: &mut SymbolSources<'_>) {}

    /// Notes that the guest has ended, and that all its ticks have been taken.
    fn end(&mut self);

    /// Entries of the status document, each with its ledger.
    fn status(&self) -> Vec<ConsumerStatus>;

    /// The amount of data that clients haven't read yet, in ticks or bytes.
    fn unread(&self) -> u64 {
        0
    }

    /// The number of the consumer's device (`kvmprof_abi::wire::device`); `None` if it has no device.
    fn device_number(&self) -> Option<u16> {
        None
    }

    /// The side whose clients can open the device; `None` for both sides.
    fn side(&self) -> Option<Side> {
        None
    }

    /// The consumer's device, if it has one.
    fn device(&mut self) -> Option<&mut dyn Device> {
        None
    }
}

/// The context of a request.
pub struct Context<'a> {
    /// The side that made the request.
    pub side: Side,
    /// The source of the ticks that are counted now; `None` while no consumer counts. For the host's clients, a source of ticks for the
    /// guest alone is ignored.
    pub source: Option<TickSource>,
    /// Whether another consumer counts ticks, so that this client has to use the same source.
    pub is_shared: bool,
    /// Whether the guest has ended.
    pub has_ended: bool,
    /// The vCPUs' clocks.
    pub clocks: &'a Clocks,
    /// The machine.
    pub machine: &'a MachineInfo,
    /// What is known of processes.
    pub processes: &'a Processes,
}

impl Context<'_> {
    /// The source of ticks for a further consumer without an event of its own: the source of the other consumers, or else the
    /// clock at the rate that kvmprof was started with. `None` if there is no clock.
    pub fn ticks(&self) -> Option<TickSource> {
        self.source
            .or_else(|| TickSource::clock(self.clocks.plan().profiling.hz))
    }

    /// The guest's processes now, each after its parent: none in guests whose processes can't be distinguished by their pids, `None` if they are
    /// unknown.
    pub fn list_processes(&self) -> Option<Vec<ListedProcess>> {
        let memory = self.machine.memory.as_ref()?;
        match self.machine.knowledge.linux() {
            Some(linux) => linux.list_processes(memory),
            None => (!self.machine.knowledge.is_pending()).then(Vec::new),
        }
    }

    /// Which ticks are to be collected before a request that asks for the guest's processes: if the kernel hasn't been located yet, each
    /// vCPU tries to locate it.
    pub fn ticks_before_list(&self) -> TicksBefore {
        if self.machine.knowledge.is_unlocated() {
            TicksBefore::AllAndEnds
        } else {
            TicksBefore::All
        }
    }

    /// Whether the guest's tasks can be looked at: it has to be Linux.
    pub fn can_look_at_tasks(&self) -> bool {
        self.machine.knowledge.may_list_tasks()
    }

    /// Checks that a further consumer may count the ticks of `source`.
    ///
    /// # Errors
    /// ENODEV for an event that this host doesn't count, of a guest that another program runs most; EBUSY while something else
    /// makes the ticks, or the clock at another rate.
    pub fn can_count(&self, source: TickSource) -> Result<(), Errno> {
        if let TickSource::Event(event) = source {
            self.has_event(event.kind())?;
        }
        match self.source {
            Some(other) if other != source => Err(Errno::EBUSY),
            _ => Ok(()),
        }
    }

    /// Checks that this host counts events of `kind` of the guest.
    ///
    /// # Errors
    /// ENODEV if it doesn't. The document of counters has the reason, if kvmprof runs the guest.
    pub fn has_event(&self, kind: EventKind) -> Result<(), Errno> {
        match self.machine.devices {
            Some(_) => check_event(kind),
            None if self.machine.events.contains(&kind) => Ok(()),
            None => Err(Errno::ENODEV),
        }
    }
}

/// Checks that this host counts events of `kind` of a guest that kvmprof runs.
///
/// # Errors
/// ENODEV if it doesn't. The document of counters has the reason.
pub fn check_event(kind: EventKind) -> Result<(), Errno> {
    match kernel_events::unavailable(kind) {
        None => Ok(()),
        Some(_) => Err(Errno::ENODEV),
    }
}

/// The work of the vCPUs' threads for consumers, while the vCPUs are stopped.
#[derive(Debug)]
pub struct OnVcpus {
    /// The processes into whose memory the threads store ticks.
    pub profiled: Arc<ProfiledProcesses>,
    /// The counts that the threads make for processes.
    pub counts: Arc<ProcessCounts>,
}

impl OnVcpus {
    /// The work for a guest with `vcpus` vCPUs.
    pub fn new(vcpus: usize) -> Self {
        Self {
            profiled: Arc::default(),
            counts: Arc::new(ProcessCounts::new(vcpus)),
        }
    }
}

/// All consumers.
pub struct Consumers {
    list: Vec<Box<dyn Consumer>>,
    /// The clock's maximum rate while only the guest counts, in Hz; 0 if the guest has no clock.
    guest_max_hz: u32,
}

impl Consumers {
    /// The consumers with devices, for a guest with `vcpus` vCPUs. `on_vcpus` is the work of the vCPUs' threads; without it, the guest has no
    /// devices, and there is neither profil nor pmc. Unread data of clients' recordings is in `room`.
    pub fn new(
        vcpus: u16,
        profiling: &ProfilingConfig,
        on_vcpus: Option<OnVcpus>,
        room: Arc<QueueBudget>,
    ) -> Self {
        let prf_addresses = profiling.prf_addresses;
        let mut list: Vec<Box<dyn Consumer>> = vec![
            Box::new(PcsConsumer::new(Side::Host, vcpus)),
            Box::new(PrfConsumer::new(Side::Host, vcpus, prf_addresses)),
            Box::new(ClientRecorders::new(room)),
        ];
        if let Some(on_vcpus) = on_vcpus {
            list.push(Box::new(PcsConsumer::new(Side::Guest, vcpus)));
            list.push(Box::new(PrfConsumer::new(
                Side::Guest,
                vcpus,
                prf_addresses,
            )));
            list.push(Box::new(ProfilConsumer::new(on_vcpus.profiled)));
            list.push(Box::new(PmcConsumer::new(on_vcpus.counts)));
        }
        Self {
            list,
            guest_max_hz: profiling.hz,
        }
    }

    /// Hands a block of a recording to each of them.
    pub fn take_block(&mut self, block: &Arc<[u8]>) {
        self.iter_mut().for_each(|one| one.take_block(block));
    }

    /// Adds a consumer.
    pub fn add(&mut self, consumer: Box<dyn Consumer>) {
        self.list.push(consumer);
    }

    /// All consumers.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Consumer> {
        self.list.iter().map(|consumer| &**consumer)
    }

    /// All consumers, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut (dyn Consumer + 'static)> {
        self.list.iter_mut().map(|consumer| &mut **consumer)
    }

    /// Which one has device number `number` for clients of `side`.
    pub fn with_device(&self, number: u16, side: Side) -> Option<usize> {
        let mut consumers = self.list.iter();
        consumers.position(|consumer| {
            consumer.device_number() == Some(number)
                && consumer.side().is_none_or(|whose| whose == side)
        })
    }

    /// The device of consumer `index`.
    pub fn device(&mut self, index: usize) -> Option<&mut dyn Device> {
        self.list.get_mut(index)?.device()
    }

    /// What all of them need at this moment.
    pub fn needs(&self) -> AllNeeds {
        AllNeeds {
            each: self.iter().map(Consumer::needs).collect(),
            guest_max_hz: self.guest_max_hz,
        }
    }

    /// Notes that `source` makes the ticks from now on.
    pub fn follow(&mut self, source: Option<TickSource>) {
        for consumer in self.iter_mut() {
            consumer.follow(source);
        }
    }
}

#[cfg(test)]
mod tests;
