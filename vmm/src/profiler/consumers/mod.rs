//! Whoever counts ticks. To add a consumer: a file here with its [`Consumer`] (and [`Device`], if clients can open
//! it), and a line in [`Consumers::new`].

mod client_recorders;
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
use kvmprof_devices::endpoint::{Handle, IoctlReply, Readiness};
use kvmprof_recording::status::ConsumerStatus;
use kvmprof_recording::tasks::TaskLook;
use kvmprof_recording::{EventKind, Room, Ticks};

use super::MachineInfo;
use super::clocks::Clocks;
use super::processes::Processes;
use crate::clock::TickSource;
use crate::counters::ProcessCounts;
use crate::kernel_events;
use crate::profil::ProfiledProcesses;
use client_recorders::ClientRecorders;
use pcs::PcsConsumer;
use pmc::PmcConsumer;
use prf::PrfConsumer;
use profil::ProfilConsumer;

pub use file_recorder::{FileRecorder, RecordPlan};
pub use needs::{AllNeeds, ClockNeeds, LookNeeds};
pub use recording::{LookPlan, SymbolSources, recording_info};

/// Who opens a device. What the guest opens never stands in the way of the host's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A client of the host socket.
    Host,
    /// The guest, through its ports.
    Guest,
}

/// Counts ticks.
pub trait Consumer {
    /// What it needs of the clocks now.
    fn needs(&self) -> ClockNeeds;

    /// Takes `ticks`, and the frames of their sample's stack, whether it needs any or not.
    fn take(&mut self, ticks: &Ticks, frames: &[u64]);

    /// Takes a look at the guest's tasks, whether it needs any or not.
    fn take_look(&mut self, _look: &TaskLook) {}

    /// Takes a block of a recording: mappings or a file that samples refer to, which come after it.
    fn take_block(&mut self, _block: &Arc<[u8]>) {}

    /// Takes a block of a recording that says when the guest was restarted: the kernel's symbols come anew after it.
    fn take_restart(&mut self, _block: &Arc<[u8]>) {}

    /// From now on `source` makes the ticks.
    fn follow(&mut self, _source: Option<TickSource>) {}

    /// Does what is due by time, and what was waiting for the kernel's symbols. Called every few ms while ticks come.
    fn advance(&mut self, _sources: &mut SymbolSources<'_>) {}

    /// The guest has ended, and all its ticks have been taken.
    fn end(&mut self);

    /// Entries of the status document, each with its ledger.
    fn status(&self) -> Vec<ConsumerStatus>;

    /// How much clients have yet to read, in ticks or bytes.
    fn unread(&self) -> u64 {
        0
    }

    /// The number of the device by which clients reach it (`kvmprof_abi::wire::device`), if they do.
    fn device_number(&self) -> Option<u16> {
        None
    }

    /// Whose device it is; `None`: everybody's.
    fn client(&self) -> Option<Client> {
        None
    }

    /// That device.
    fn device(&mut self) -> Option<&mut dyn Device> {
        None
    }
}

/// A request to a device that a client opens, or has open.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Open this minor.
    Open { minor: u16 },
    /// Read at most so many bytes.
    Read { limit: usize },
    /// Carry out a command.
    Ioctl {
        command: u32,
        argument: i64,
        data: &'a [u8],
    },
    /// Close it.
    Close,
}

/// What came of a request.
#[derive(Debug)]
pub enum Reply {
    /// It is open, or closed.
    Done,
    /// What was read.
    Read(Vec<u8>),
    /// What the command gave.
    Ioctl(IoctlReply),
}

/// Which ticks have to be taken in before a request is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TicksBefore {
    /// It acts on what there is.
    #[default]
    Any,
    /// All until now, so that it acts at its own time.
    All,
    /// All until now, and every vCPU looks which of the processes have ended that consumers know.
    AllAndEnds,
    /// All until now, and with this request the consumer stops to count: unless others count, the clocks stop first,
    /// so that they count the same ticks as their last consumer. `others`: this consumer goes on to count for others.
    Last { others: bool },
}

/// What has to be done before a request is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preparation {
    /// Which ticks have to be taken in.
    pub ticks: TicksBefore,
    /// Whether the files have to be read that processes have mapped.
    pub files: bool,
}

impl Preparation {
    /// These ticks, and no files.
    pub fn ticks(ticks: TicksBefore) -> Self {
        Self {
            ticks,
            files: false,
        }
    }
}

/// What a device is told with a request.
pub struct Context<'a> {
    /// Who made the request.
    pub client: Client,
    /// What makes the ticks that are counted now; `None` while nobody counts. For the host's clients what makes ticks for the guest
    /// alone doesn't count.
    pub source: Option<TickSource>,
    /// Whether another consumer counts ticks to whose source this client has to keep.
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
    /// What makes the ticks of one more consumer that asks for no event: what makes those of the others already, else the
    /// clock at the rate that kvmprof was started with. `None`: there is no clock.
    pub fn ticks(&self) -> Option<TickSource> {
        self.source
            .or_else(|| TickSource::clock(self.clocks.plan().hz))
    }

    /// Whether the guest's tasks can be looked at: those of a Linux guest of this program's own.
    pub fn can_look_at_tasks(&self) -> bool {
        self.machine.devices.is_some() && self.machine.knowledge.may_list_tasks()
    }

    /// Whether one more consumer may count the ticks of `source`.
    ///
    /// # Errors
    /// ENODEV for an event that this host doesn't count, or if another program runs the guest; EBUSY while something else
    /// makes the ticks, or the clock at another rate.
    pub fn can_count(&self, source: TickSource) -> Result<(), Errno> {
        if let TickSource::Event(event) = source {
            if self.machine.devices.is_none() {
                return Err(Errno::ENODEV);
            }
            check_event(event.kind())?;
        }
        match self.source {
            Some(other) if other != source => Err(Errno::EBUSY),
            _ => Ok(()),
        }
    }
}

/// Whether this host counts events of `kind`.
///
/// # Errors
/// ENODEV if not. The document of counters says why.
pub fn check_event(kind: EventKind) -> Result<(), Errno> {
    match kernel_events::missing(kind) {
        None => Ok(()),
        Some(_) => Err(Errno::ENODEV),
    }
}

/// A device that clients open. No call blocks.
pub trait Device {
    /// What has to be done before `request` is carried out, for which nothing is changed yet.
    ///
    /// # Errors
    /// What the request fails with; it isn't carried out then.
    fn prepare(
        &self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno>;

    /// Carries out `request`.
    ///
    /// # Errors
    /// Whatever the device's page promises.
    fn carry_out(
        &mut self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Reply, Errno>;

    /// Takes `bytes`, all or as many as the result says.
    ///
    /// # Errors
    /// Whatever the device's page promises; EBADF, as write(2) says it, for a device that can only be read.
    fn write(&mut self, _handle: Handle, _bytes: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }

    /// What wouldn't block now.
    fn readiness(&self, handle: Handle) -> Readiness;
}

/// What the vCPUs' threads do for consumers while the vCPUs stand still.
#[derive(Debug)]
pub struct OnVcpus {
    /// They store ticks into the memory of these processes.
    pub profiled: Arc<ProfiledProcesses>,
    /// They count for processes.
    pub counts: Arc<ProcessCounts>,
    /// They take so many frames of a call stack at most.
    pub max_stack: usize,
}

impl OnVcpus {
    /// For a guest with `vcpus` vCPUs, whose call stacks have `max_stack` frames at most.
    pub fn new(vcpus: usize, max_stack: usize) -> Self {
        Self {
            profiled: Arc::default(),
            counts: Arc::new(ProcessCounts::new(vcpus)),
            max_stack,
        }
    }
}

/// All consumers.
pub struct Consumers {
    list: Vec<Box<dyn Consumer>>,
    /// The clock's rate while only the guest counts, in Hz at most; 0: it has no clock.
    guest_max_hz: u32,
}

impl Consumers {
    /// Those that clients reach, for a guest with `vcpus` vCPUs; a table of prf may have `prf_addresses` addresses, and
    /// the vCPUs' threads do what is in `on_vcpus`; without that the guest has no devices, and there is neither profil nor pmc.
    /// While only the guest counts, the clock runs at `guest_max_hz` Hz at most. What clients have yet to read of recordings is in `room`.
    pub fn new(
        vcpus: u16,
        prf_addresses: usize,
        on_vcpus: Option<OnVcpus>,
        guest_max_hz: u32,
        room: Arc<Room>,
    ) -> Self {
        let mut list: Vec<Box<dyn Consumer>> = vec![
            Box::new(PcsConsumer::new(Client::Host, vcpus)),
            Box::new(PrfConsumer::new(Client::Host, vcpus, prf_addresses)),
            Box::new(ClientRecorders::new(room)),
        ];
        if let Some(on_vcpus) = on_vcpus {
            list.push(Box::new(PcsConsumer::new(Client::Guest, vcpus)));
            list.push(Box::new(PrfConsumer::new(
                Client::Guest,
                vcpus,
                prf_addresses,
            )));
            list.push(Box::new(ProfilConsumer::new(on_vcpus.profiled)));
            list.push(Box::new(PmcConsumer::new(on_vcpus.counts)));
        }
        Self { list, guest_max_hz }
    }

    /// Adds one more.
    pub fn add(&mut self, consumer: Box<dyn Consumer>) {
        self.list.push(consumer);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Consumer> {
        self.list.iter().map(|consumer| &**consumer)
    }

    /// All of them, to be fed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut (dyn Consumer + 'static)> {
        self.list.iter_mut().map(|consumer| &mut **consumer)
    }

    /// Which one has device number `number` for `client`.
    pub fn with_device(&self, number: u16, client: Client) -> Option<usize> {
        let mut consumers = self.list.iter();
        consumers.position(|consumer| {
            consumer.device_number() == Some(number)
                && consumer.client().is_none_or(|whose| whose == client)
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

    /// From now on `source` makes the ticks.
    pub fn follow(&mut self, source: Option<TickSource>) {
        for consumer in self.iter_mut() {
            consumer.follow(source);
        }
    }
}

#[cfg(test)]
mod tests;
