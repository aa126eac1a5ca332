//! The device between the vCPU threads, which access its registers, and the event thread, which
//! serves its queues.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use kvmprof_devices::endpoint::{Backend, HelloInfo};
use kvmprof_devices::virtio::console::{Console, ConsoleFaults, ConsoleSize, EndpointPort, Port};
use kvmprof_devices::virtio::{
    Effect, InterruptStatus, MmioTransport, QUEUE_NOTIFY, TransportCounts,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::GuestAccess;
use crate::console::HvcConsole;
use crate::lock::lock;
use crate::machine::{GuestMemory, MachineError, layout};

/// The register by which a driver resets the device when it writes 0 (virtio 1.2, section 4.2.2).
const STATUS: u64 = 0x70;

/// How many ports carry the framed protocol.
const ENDPOINT_PORTS: u32 = 2;

/// What a virtio console device is made of.
pub struct ConsolePorts {
    console: Console,
    work: EventFd,
}

impl ConsolePorts {
    /// The ports of a guest with this access and this console; None if there would be none. `info` go
    /// into the answer to a hello.
    ///
    /// Without `hvc` the guest never hears of a port 0: init systems start a login on every console
    /// that they find, and on one that leads nowhere that would only cost time.
    ///
    /// # Errors
    /// If there are no more file descriptors.
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
///
/// One lock over registers and queues: once a driver's reset has returned, its memory isn't
/// touched any more. Whoever holds it does a bounded amount of work, but may wait for vCPUs to settle
/// their clocks: what an interrupt handler accesses needs no lock.
pub struct ConsoleDevice {
    transport: Mutex<MmioTransport<Console>>,
    interrupt_status: InterruptStatus,
    /// As of when the device was served last, so that whoever asks needn't wait for that lock, or
    /// hold it twice. Taken while the lock above is held, never the other way round.
    record: Mutex<ConsoleRecord>,
    memory: GuestMemory,
    work: EventFd,
    interrupt: EventFd,
}

/// What the guest's driver has done until now, and what it has done wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleRecord {
    /// With the device as a whole.
    pub transport: TransportCounts,
    /// With its control queues and ports.
    pub console: ConsoleFaults,
}

impl ConsoleDevice {
    /// A device whose queues lie in `memory`.
    ///
    /// # Errors
    /// If there are no more file descriptors.
    pub fn new(ports: ConsolePorts, memory: GuestMemory) -> Result<Self, MachineError> {
        let transport = MmioTransport::new(ports.console).map_err(MachineError::Virtio)?;
        Ok(Self {
            interrupt_status: transport.interrupt_status().clone(),
            record: Mutex::new(record(&transport)),
            transport: Mutex::new(transport),
            memory,
            work: ports.work,
            interrupt: EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?,
        })
    }

    /// Connects it with KVM, so that neither a notification by the guest nor an interrupt for it
    /// stops a vCPU thread.
    ///
    /// # Errors
    /// If KVM refuses that.
    pub fn connect(&self, vm: &VmFd) -> Result<(), MachineError> {
        let refused = |operation| move |source| MachineError::Kvm { operation, source };
        let notify = u64::from(layout::VIRTIO_MMIO) + u64::from(QUEUE_NOTIFY);
        // One event for all queues: they are looked at together, in an order of our own.
        vm.register_ioevent(&self.work, &IoEventAddress::Mmio(notify), NoDatamatch)
            .map_err(refused("notifications of virtio queues (KVM_IOEVENTFD)"))?;
        vm.register_irqfd(&self.interrupt, layout::VIRTIO_MMIO_GSI)
            .map_err(refused("the virtio device's interrupt (KVM_IRQFD)"))
    }

    /// Answers a read of its registers.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        if !self.interrupt_status.read(offset, data) {
            self.transport().read(offset, data);
        }
    }

    /// Answers a write to its registers.
    pub fn write(&self, offset: u64, data: &[u8]) {
        if self.interrupt_status.write(offset, data) {
            return;
        }
        let mut transport = self.transport();
        let effect = transport.write(offset, data, &self.memory);
        self.interrupt_if_due(&mut transport);
        if effect == Effect::Serve {
            self.ask_for_service();
        }
    }

    /// Resets it, as its driver would: the ports are closed, and memory isn't touched before there is a driver again.
    pub fn reset(&self) {
        self.write(STATUS, &[0; 4]);
    }

    /// Becomes readable when the device wants to be served.
    pub fn work(&self) -> &EventFd {
        &self.work
    }

    /// Serves the queues, for a bounded time; if there is more to do then, asks for it.
    pub fn serve(&self, backend: &mut dyn Backend) {
        let mut transport = self.transport();
        if transport.serve(&self.memory, backend) {
            self.ask_for_service();
        }
        self.interrupt_if_due(&mut transport);
        *lock(&self.record) = record(&transport);
    }

    /// The console has another size now.
    pub fn resize(&self, size: ConsoleSize) {
        self.transport().device_mut().resize(size);
        self.ask_for_service();
    }

    /// Frees what the guest had open, for good: it has ended.
    pub fn end(&self, backend: &mut dyn Backend) {
        self.transport().end(backend);
    }

    /// What the guest's driver has done until now.
    pub fn record(&self) -> ConsoleRecord {
        lock(&self.record).clone()
    }

    fn ask_for_service(&self) {
        // A full counter has asked already.
        let _ = self.work.write(1);
    }

    fn interrupt_if_due(&self, transport: &mut MmioTransport<Console>) {
        if transport.take_interrupt() {
            // As above.
            let _ = self.interrupt.write(1);
        }
    }

    fn transport(&self) -> MutexGuard<'_, MmioTransport<Console>> {
        lock(&self.transport)
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
