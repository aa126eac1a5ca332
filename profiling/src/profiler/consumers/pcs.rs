//! pcs: the program counter sampling device.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PCS_STOP;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, IoctlReply, Readiness};
use kvmprof_devices::profiling::{ClockRequest, Pcs};
use kvmprof_recording::status::{ConsumerStatus, PcsStatus};
use kvmprof_recording::{SamplingEvent, Ticks};

use super::{ClockNeeds, Command, Consumer, Context, Device, Preparation, Side, TicksBefore};
use crate::clock::TickSource;

/// The device and its account.
#[derive(Debug)]
pub struct PcsConsumer {
    side: Side,
    pcs: Pcs,
    /// The event that has made the ticks since the open; `None` for the clock.
    event: Option<SamplingEvent>,
}

impl PcsConsumer {
    /// The device of `side`, for a guest with `vcpus` vCPUs.
    pub fn new(side: Side, vcpus: u16) -> Self {
        Self {
            side,
            pcs: Pcs::new(vcpus),
            event: None,
        }
    }

    fn source(&self) -> Option<TickSource> {
        match self.event {
            _ if !self.pcs.wants_ticks() => None,
            Some(event) => Some(TickSource::Event(event)),
            None => TickSource::clock(self.pcs.hz()),
        }
    }
}

impl Consumer for PcsConsumer {
    fn needs(&self) -> ClockNeeds {
        ClockNeeds {
            source: self.source(),
            gives_way: self.side == Side::Guest,
            // Before the first PROF_*, nothing is gathered, so the guest's first instructions would be missed.
            starts_guest: self.pcs.is_gathering(),
            process_group: self.pcs.wants_process_group(),
            ..ClockNeeds::default()
        }
    }

    fn take(&mut self, ticks: &Ticks, _frames: &[u64]) {
        self.pcs.feed(ticks);
    }

    fn follow(&mut self, source: Option<TickSource>) {
        if self.side == Side::Guest && self.source().is_some_and(|own| source != Some(own)) {
            // The samples would have two rates, without a mark of the change.
            self.pcs.stop();
        }
    }

    fn end(&mut self) {
        self.pcs.stop();
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        let ledger = self.pcs.ledger();
        let name = match self.side {
            Side::Host => "pcs",
            Side::Guest if !self.pcs.is_open() && ledger.ticks == 0 => return Vec::new(),
            Side::Guest => "guest pcs",
        };
        vec![ConsumerStatus::Pcs(PcsStatus {
            name: name.to_owned(),
            open: self.pcs.is_open(),
            gathering: self.pcs.is_gathering(),
            ledger,
        })]
    }

    fn unread(&self) -> u64 {
        self.pcs.ledger().pending
    }

    fn device_number(&self) -> Option<u16> {
        Some(device::PCS)
    }

    fn side(&self) -> Option<Side> {
        Some(self.side)
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }
}

impl Device for PcsConsumer {
    fn before_open(&self, minor: u16, context: &Context<'_>) -> Result<Preparation, Errno> {
        if minor != 0 || context.has_ended {
            return Err(Errno::ENXIO);
        }
        // Ticks from before the open don't belong to any client.
        Ok(TicksBefore::All.into())
    }

    fn before_ioctl(
        &self,
        _handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        let ticks = match self.pcs.clock_request(command.number, command.argument)? {
            Some(ClockRequest::Flush) if command.number == PCS_STOP => {
                TicksBefore::Last { others: false }
            }
            Some(ClockRequest::Flush) => TicksBefore::All,
            Some(ClockRequest::Rate(hz))
                if self.side == Side::Guest && hz > context.clocks.plan().profiling.hz =>
            {
                return Err(Errno::EPERM);
            }
            // Other consumers use the clock, too, or no clock is used.
            Some(ClockRequest::Rate(_)) if context.is_shared || self.event.is_some() => {
                return Err(Errno::EBUSY);
            }
            Some(ClockRequest::Rate(_)) => TicksBefore::All,
            None => TicksBefore::Any,
        };
        Ok(ticks.into())
    }

    fn before_close(&self, _handle: Handle) -> Preparation {
        TicksBefore::Last { others: false }.into()
    }

    fn open(&mut self, _handle: Handle, _minor: u16, context: &Context<'_>) -> Result<(), Errno> {
        let ticks = context.ticks();
        let event = ticks.and_then(TickSource::event);
        match event {
            Some(_) => self.pcs.open_by_event()?,
            None => self.pcs.open(ticks.map_or(0, TickSource::hz))?,
        }
        self.event = event;
        Ok(())
    }

    fn read(&mut self, _: Handle, limit: usize, _: &Context<'_>) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        self.pcs.read(limit, &mut bytes)?;
        Ok(bytes)
    }

    fn ioctl(
        &mut self,
        _handle: Handle,
        command: &Command<'_>,
        _context: &Context<'_>,
    ) -> Result<IoctlReply, Errno> {
        let Command {
            number,
            argument,
            data,
        } = *command;
        self.pcs.ioctl(number, argument, data)
    }

    fn close(&mut self, _handle: Handle) {
        self.pcs.close();
    }

    fn readiness(&self, _handle: Handle) -> Readiness {
        Readiness {
            readable: self.pcs.readable(),
            ..Readiness::default()
        }
    }
}
