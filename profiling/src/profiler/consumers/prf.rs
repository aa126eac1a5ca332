//! prf: the kernel profiler, with all its minors.

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::RATE_HZ;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, IoctlReply, Readiness};
use kvmprof_devices::profiling::{Prf, Switch};
use kvmprof_recording::Ticks;
use kvmprof_recording::status::{ConsumerStatus, PrfStatus};

use super::rate::{RateCheck, can_follow, ticks_a_second};
use super::{ClockNeeds, Command, Consumer, Context, Device, Preparation, Side, TicksBefore};
use crate::clock::TickSource;

/// The device, and which minor each client has open.
#[derive(Debug)]
pub struct PrfConsumer {
    side: Side,
    prf: Prf,
    /// The source of ticks when a minor was turned on last.
    source: Option<TickSource>,
    rates: RateCheck,
    open: BTreeMap<Handle, u16>,
}

impl PrfConsumer {
    /// The device of `side`, for a guest with `vcpus` vCPUs. A table may have `max_addresses` addresses.
    pub fn new(side: Side, vcpus: u16, max_addresses: usize) -> Self {
        Self {
            side,
            prf: Prf::new(vcpus, max_addresses),
            source: None,
            rates: RateCheck::default(),
            open: BTreeMap::new(),
        }
    }

    fn minor(&self, handle: Handle) -> Result<u16, Errno> {
        self.open.get(&handle).copied().ok_or(Errno::EBADF)
    }

    /// Uses `source` from now on, because a minor is turned on.
    fn take_ticks_of(&mut self, source: Option<TickSource>) {
        self.source = source;
        let hz = ticks_a_second(source, RATE_HZ);
        self.prf.set_hz(hz);
        // prf itself refuses it.
        let _ = self.rates.divides(hz, RATE_HZ, "prf counts");
    }
}

impl Consumer for PrfConsumer {
    fn needs(&self) -> ClockNeeds {
        let counts = self.prf.wants_ticks();
        ClockNeeds {
            source: self.source.filter(|_| counts),
            gives_way: self.side == Side::Guest,
            starts_guest: counts,
            ..ClockNeeds::default()
        }
    }

    fn take(&mut self, ticks: &Ticks, _frames: &[u64]) {
        self.prf.feed(ticks);
    }

    fn follow(&mut self, source: Option<TickSource>) {
        if !self.prf.wants_ticks() {
            return;
        }
        if can_follow(self.source, source, RATE_HZ) {
            self.prf.set_hz(ticks_a_second(source, RATE_HZ));
        } else {
            self.prf.turn_off();
        }
    }

    fn end(&mut self) {
        self.prf.end();
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        let whose = match self.side {
            Side::Host => "",
            Side::Guest => "guest ",
        };
        let minors = self.prf.reports().map(|minor| {
            ConsumerStatus::Prf(PrfStatus {
                name: format!("{whose}prf {}", minor.minor),
                minor: minor.minor,
                on: minor.on,
                loaded: true,
                addresses: minor.addresses,
                ledger: minor.ledger,
            })
        });
        minors.collect()
    }

    fn device_number(&self) -> Option<u16> {
        Some(device::PRF)
    }

    fn side(&self) -> Option<Side> {
        Some(self.side)
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }
}

impl Device for PrfConsumer {
    fn before_open(&self, minor: u16, _context: &Context<'_>) -> Result<Preparation, Errno> {
        self.prf.check_minor(minor)?;
        Ok(Preparation::default())
    }

    fn before_read(&self, handle: Handle) -> Result<Preparation, Errno> {
        let is_on = self.prf.is_on(self.minor(handle)?);
        // The idle counter has the ticks of halted vCPUs, too.
        let ticks = if is_on {
            TicksBefore::All
        } else {
            TicksBefore::Any
        };
        Ok(ticks.into())
    }

    fn before_ioctl(
        &self,
        handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        let minor = self.minor(handle)?;
        let ticks = match self.prf.switch(minor, command.number, command.argument) {
            Some(Switch::On) if context.has_ended => return Err(Errno::ENXIO),
            Some(Switch::On) => TicksBefore::All,
            Some(Switch::Off) => {
                let mut others = self.prf.reports().filter(|other| other.minor != minor);
                TicksBefore::Last {
                    others: others.any(|other| other.on),
                }
            }
            None => TicksBefore::Any,
        };
        Ok(ticks.into())
    }

    fn open(&mut self, handle: Handle, minor: u16, _context: &Context<'_>) -> Result<(), Errno> {
        self.open.insert(handle, minor);
        Ok(())
    }

    fn read(&mut self, handle: Handle, limit: usize, _: &Context<'_>) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        self.prf.read(self.minor(handle)?, limit, &mut bytes)?;
        Ok(bytes)
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        self.prf.write(self.minor(handle)?, bytes)
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<IoctlReply, Errno> {
        let minor = self.minor(handle)?;
        if self.prf.switch(minor, command.number, command.argument) == Some(Switch::On) {
            self.take_ticks_of(context.ticks());
        }
        self.prf.ioctl(minor, command.number, command.argument)
    }

    fn close(&mut self, handle: Handle) {
        // A minor that is on stays on (its manual page).
        self.open.remove(&handle);
    }

    fn readiness(&self, _handle: Handle) -> Readiness {
        // Always ready (its manual page).
        Readiness {
            readable: true,
            writable: true,
            hang_up: self.prf.has_ended(),
        }
    }
}
