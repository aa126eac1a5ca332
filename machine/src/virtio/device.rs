//! The console device: its ports, and the counts of what the guest's driver has done with it.

use std::io;
use std::sync::{Arc, Mutex};

use kvmprof_devices::endpoint::{Backend, Client, HelloInfo};
use kvmprof_devices::virtio::MmioTransport;
use kvmprof_devices::virtio::console::{Console, ConsoleSize, EndpointPort, Port};
use kvmprof_recording::status::{PortStatus, VirtioStatus};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{GuestAccess, MmioRegisters, Notifications, VirtioMmio};
use crate::console::HvcConsole;
use crate::error::MachineError;
use crate::lock::lock;
use crate::memory::GuestMemory;

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
            let port: Box<dyn Port> = Box::new(EndpointPort::new(Client::Guest(access), info));
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
    /// The counts when the device was served last, so that readers needn't wait for the device's lock, or take it twice. This lock is taken
    /// while that one is held, and never the other way round.
    status: Mutex<VirtioStatus>,
    work: EventFd,
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
            status: Mutex::new(mmio.with(|transport, _| status(transport))),
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
            *lock(&self.status) = status(transport);
        });
    }

    /// Tells the guest the console's new size.
    pub fn resize(&self, size: ConsoleSize) {
        (self.mmio).with(|transport, _| transport.device_mut().resize(size));
        self.mmio.ask_for_service();
    }

    /// Closes permanently what the guest had open, because the guest has ended.
    pub fn end(&self, backend: &mut dyn Backend) {
        self.mmio.with(|transport, _| transport.end(backend));
    }

    /// The counts of what the guest's driver has done until now.
    pub fn status(&self) -> VirtioStatus {
        lock(&self.status).clone()
    }
}

fn status(transport: &MmioTransport<Console>) -> VirtioStatus {
    let (driver, console) = (transport.counts(), transport.device().faults());
    let ports = console.ports.into_iter().map(|(name, faults)| PortStatus {
        name,
        queue_faults: faults.queue,
        protocol_faults: faults.protocol,
    });
    VirtioStatus {
        resets: driver.resets,
        refused_queues: driver.refused_queues,
        control_faults: console.control,
        ports: ports.collect(),
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
    fn the_number_of_ports_is_bounded() {
        assert!(ports(false, GuestAccess::None).is_empty());
        assert_eq!(ports(true, GuestAccess::None), ["console"]);
        let named = ["kvmprof.0", "kvmprof.1"];
        assert_eq!(ports(false, GuestAccess::Pcs), named);
        assert_eq!(ports(true, GuestAccess::All)[1..], named);
    }
}
