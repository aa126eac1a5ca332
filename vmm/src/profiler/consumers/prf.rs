//! prf: the kernel profiler, with all its minors.

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::RATE_HZ;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, Readiness};
use kvmprof_devices::profiling::{Prf, Switch};
use kvmprof_recording::Ticks;
use kvmprof_recording::status::{ConsumerStatus, PrfStatus};

use super::rate::{RateCheck, can_follow, ticks_a_second};
use super::{
    Client, ClockNeeds, Consumer, Context, Device, Preparation, Reply, Request, TicksBefore,
};
use crate::clock::TickSource;

/// The device, and which minor each client has open.
#[derive(Debug)]
pub struct PrfConsumer {
    client: Client,
    prf: Prf,
    /// The source of ticks when a minor was turned on last.
    source: Option<TickSource>,
    rates: RateCheck,
    open: BTreeMap<Handle, u16>,
}

impl PrfConsumer {
    /// The device of `client`, for a guest with `vcpus` vCPUs. A table may have `max_addresses` addresses.
    pub fn new(client: Client, vcpus: u16, max_addresses: usize) -> Self {
        Self {
            client,
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
            gives_way: self.client == Client::Guest,
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
        let whose = match self.client {
            Client::Host => "",
            Client::Guest => "guest ",
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

    fn client(&self) -> Option<Client> {
        Some(self.client)
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }
}

impl Device for PrfConsumer {
    fn prepare(
        &self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        let ticks = match *request {
            Request::Open { minor } => {
                self.prf.check_minor(minor)?;
                TicksBefore::Any
            }
            // The idle counter has the ticks of halted vCPUs, too.
            Request::Read { .. } if self.prf.is_on(self.minor(handle)?) => TicksBefore::All,
            Request::Read { .. } | Request::Close => TicksBefore::Any,
            Request::Ioctl {
                command, argument, ..
            } => {
                let minor = self.minor(handle)?;
                match self.prf.switch(minor, command, argument) {
                    Some(Switch::On) if context.has_ended => return Err(Errno::ENXIO),
                    Some(Switch::On) => TicksBefore::All,
                    Some(Switch::Off) => {
                        let mut others = self.prf.reports().filter(|other| other.minor != minor);
                        TicksBefore::Last {
                            others: others.any(|other| other.on),
                        }
                    }
                    None => TicksBefore::Any,
                }
            }
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
            Request::Open { minor } => {
                self.open.insert(handle, minor);
                Ok(Reply::Done)
            }
            Request::Read { limit } => {
                let mut bytes = Vec::new();
                self.prf.read(self.minor(handle)?, limit, &mut bytes)?;
                Ok(Reply::Read(bytes))
            }
            Request::Ioctl {
                command, argument, ..
            } => {
                let minor = self.minor(handle)?;
                if self.prf.switch(minor, command, argument) == Some(Switch::On) {
                    self.take_ticks_of(context.ticks());
                }
                let reply = self.prf.ioctl(minor, command, argument);
                reply.map(Reply::Ioctl)
            }
            Request::Close => {
                // A minor that is on stays on (its manual page).
                self.open.remove(&handle);
                Ok(Reply::Done)
            }
        }
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        self.prf.write(self.minor(handle)?, bytes)
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
