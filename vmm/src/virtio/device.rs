//! The console device: its ports, and the counts of what the guest's driver has done with it.

use std::io;
use std::sync::{Arc, Mutex};

use kvmprof_devices::endpoint::{Backend, HelloInfo};
use kvmprof_devices::virtio::console::{Console, ConsoleFaults, ConsoleSize, EndpointPort, Port};
use kvmprof_devices::virtio::{MmioTransport, TransportCounts};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{GuestAccess, MmioRegisters, Notifications, VirtioMmio};
use crate::console::HvcConsole;
use crate::lock::lock;
use crate::machine::{GuestMemory, MachineError};

/// Number of ports with the framed protocol.
const ENDPOINT_PORTS: u32 = 2;

/// The parts of a virtio console device.
pub struct ConsolePorts {
    console: Console,
    work: EventFd,
}

impl ConsolePorts {
    /// The ports of a guest with this access and this console; `None` if there would be no port. `info` is in the answer to a hello.
    ///
    /// Without `hvc` the guest has no port 0: init systems start a login on every console that they find, which would only cost time if it
    /// leads nowhere.
    ///
    /// # Errors
    /// There are no more file descriptors.
    pub fn new(
        hvc: Option<&Arc<HvcConsole>>,
        access: GuestAccess,
        info: HelloInfo,
    ) -> io::Result<Option<Self>> {
        let count = match access {
            GuestAccess::None => 0,
            _ => ENDPOINT_PORTS,
        };
        if count == 0 && hvc.is_none() {
            return Ok(None);
        }
        let named = |number| {
            let port: Box<dyn Port> = Box::new(EndpointPort::new(info));
            (format!("kvmprof.{number}"), port)
        };
        let work = match hvc {
            Some(hvc) => hvc.work().try_clone()?,
            None => EventFd::new(EFD_NONBLOCK)?,
        };
        Ok(Some(Self {
            console: Console::new(hvc.map(HvcConsole::port), (0..count).map(named).collect()),
            work,
        }))
    }
}

/// A virtio console device, usable from any thread.
pub struct ConsoleDevice {
    mmio: Arc<VirtioMmio<Console>>,
    /// The record when the device was served last, so that readers needn't wait for the device's lock, or take it twice. This lock is taken
    /// while that one is held, and never the other way round.
    record: Mutex<ConsoleRecord>,
    work: EventFd,
}

/// The counts of what the guest's driver has done, and of its faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleRecord {
    /// The counts of the device as a whole.
    pub transport: TransportCounts,
    /// The faults at the control queues and ports.
    pub console: ConsoleFaults,
}

impl ConsoleDevice {
    /// A device whose queues lie in `memory`.
    ///
    /// # Errors
    /// There are no more file descriptors.
    pub fn new(ports: ConsolePorts, memory: GuestMemory) -> Result<Self, MachineError> {
        // There is one event for all queues, which are served together, in an order of the device's own.
        let work = ports.work.try_clone().map_err(MachineError::EventFd)?;
        let notifications = Notifications::Together(ports.work);
        let mmio = VirtioMmio::new(ports.console, memory, notifications)?;
        Ok(Self {
            record: Mutex::new(mmio.with(|transport, _| record(transport))),
            mmio: Arc::new(mmio),
            work,
        })
    }

    /// The device's registers.
    pub fn registers(&self) -> Arc<dyn MmioRegisters> {
        self.mmio.clone()
    }

    /// The event that becomes readable when the device is to be served.
    pub fn work(&self) -> &EventFd {
        &self.work
    }

    /// Serves the queues for a bounded time. If there is more to do then, asks to be called again.
    pub fn serve(&self, backend: &mut dyn Backend) {
        self.mmio.with(|transport, memory| {
            if transport.serve(memory, backend) {
                self.mmio.ask_for_service();
            }
            *lock(&self.record) = record(transport);
        });
    }

    /// Tells the guest the console's new size.
    pub fn resize(&self, size: ConsoleSize) {
        (self.mmio).with(|transport, _| transport.device_mut().resize(size));
        self.mmio.ask_for_service();
    }

    /// Closes for good what the guest had open, because the guest has ended.
    pub fn end(&self, backend: &mut dyn Backend) {
        self.mmio.with(|transport, _| transport.end(backend));
    }

    /// The counts of what the guest's driver has done until now.
    pub fn record(&self) -> ConsoleRecord {
        lock(&self.record).clone()
    }
}

fn record(transport: &MmioTransport<Console>) -> ConsoleRecord {
    ConsoleRecord {
        transport: transport.counts(),
        console: transport.device().faults(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::ConsoleOutput;

    fn ports(hvc: bool, access: GuestAccess) -> Vec<String> {
        let output = ConsoleOutput::discard();
        let hvc = hvc.then(|| Arc::new(HvcConsole::new(output).unwrap()));
        let ports = ConsolePorts::new(hvc.as_ref(), access, HelloInfo::default()).unwrap();
        let faults = ports.map(|ports| ports.console.faults().ports);
        let names = faults.into_iter().flatten().map(|(name, _)| name);
        names.collect()
    }

    #[test]
    fn there_are_as_many_ports_as_are_of_use() {
        assert!(ports(false, GuestAccess::None).is_empty());
        assert_eq!(ports(true, GuestAccess::None), ["console"]);
        let named = ["kvmprof.0", "kvmprof.1"];
        assert_eq!(ports(false, GuestAccess::Pcs), named);
        assert_eq!(ports(true, GuestAccess::All)[1..], named);
    }
}
