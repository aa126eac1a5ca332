//! A virtio device, which is shared by the vCPU threads that access its registers and the threads that serve its queues.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use kvmprof_devices::virtio::{
    Effect, InterruptStatus, MmioTransport, QUEUE_NOTIFY, STATUS, VirtioDevice,
};
use kvmprof_recording::status::MachineStatus;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::slots::VirtioSlot;
use super::thread::DeviceThread;
use crate::error::{MachineError, kvm};
use crate::lock::lock;
use crate::memory::GuestMemory;

/// The state and the counts of a device, for other threads. They never wait for long.
pub trait DeviceMonitor: Send + Sync {
    /// Enters the device into the machine's status.
    fn enter(&self, machine: &mut MachineStatus);
}

/// The parts of a virtio device of a machine, before there is guest memory.
pub trait VirtioParts: Send {
    /// What other threads see of the device while the guest runs.
    fn monitor(&self) -> Arc<dyn DeviceMonitor>;

    /// Makes the device, whose queues are in `memory`, and starts its own threads, if it has any.
    ///
    /// # Errors
    /// The host lacks a resource.
    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError>;
}

/// A virtio device of a machine.
pub struct Assembled {
    /// The device's registers.
    pub registers: Arc<dyn MmioRegisters>,
    /// The threads that serve the device; none if the event thread does. They end after the vCPUs.
    pub threads: Vec<DeviceThread>,
}

/// A device's registers, as vCPU threads and KVM access them. Any thread can use them.
pub trait MmioRegisters: Send + Sync {
    /// Reads the registers at `offset` from the first one.
    fn read(&self, offset: u64, data: &mut [u8]);

    /// Writes the registers at `offset` from the first one.
    fn write(&self, offset: u64, data: &[u8]);

    /// Connects the device with KVM, so that neither the guest's notifications nor interrupts of the guest stop a vCPU thread.
    ///
    /// # Errors
    /// KVM refuses to connect it.
    fn connect(&self, vm: &VmFd, slot: &VirtioSlot) -> Result<(), MachineError>;

    /// Resets the device as its driver does. Guest memory isn't accessed then until there is a driver again.
    fn reset(&self) {
        self.write(STATUS.into(), &[0; 4]);
    }
}

/// The events that become readable when the guest's driver notifies a queue.
pub enum Notifications {
    /// One event for all queues, which are served together, in an order of the device's own.
    Together(EventFd),
    /// An event for each queue, in the order of their indices.
    EachQueue(Vec<EventFd>),
    /// As before, but another program waits for the events, and interrupts the guest by [`VirtioMmio::interrupt`].
    Elsewhere(Vec<EventFd>),
}

impl Notifications {
    fn events(&self) -> &[EventFd] {
        match self {
            Self::Together(event) => std::slice::from_ref(event),
            Self::EachQueue(events) | Self::Elsewhere(events) => events,
        }
    }
}

/// An event for each of `queues` queues.
///
/// # Errors
/// There are no more file descriptors.
pub fn queue_events(queues: usize) -> Result<Vec<EventFd>, MachineError> {
    let events: io::Result<_> = (0..queues).map(|_| EventFd::new(EFD_NONBLOCK)).collect();
    events.map_err(MachineError::EventFd)
}

/// A virtio device with registers in memory. Any thread can use it.
///
/// One lock protects registers and queues, so that the device's memory isn't accessed after a reset by the driver has returned. Those who
/// hold the lock do a bounded amount of work, and don't wait for the host's disks or networks, because a vCPU that accesses a register
/// waits for the lock. The registers that interrupt handlers access need no lock.
pub struct VirtioMmio<D> {
    transport: Mutex<MmioTransport<D>>,
    interrupt_status: InterruptStatus,
    memory: GuestMemory,
    notifications: Notifications,
    interrupt: EventFd,
}

impl<D: VirtioDevice + Send> VirtioMmio<D> {
    /// Makes the registers of `device`, whose queues are in `memory`.
    ///
    /// # Errors
    /// There are no more file descriptors.
    pub fn new(
        device: D,
        memory: GuestMemory,
        notifications: Notifications,
    ) -> Result<Self, MachineError> {
        let transport = MmioTransport::new(device).map_err(MachineError::Virtio)?;
        let status = transport.interrupt_status();
        Ok(Self {
            interrupt_status: match notifications {
                Notifications::Elsewhere(_) => status.of_used_buffers_elsewhere(),
                _ => status.clone(),
            },
            transport: Mutex::new(transport),
            memory,
            notifications,
            interrupt: EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?,
        })
    }

    /// Calls `action` with the device locked, and interrupts the guest if that has become due.
    pub fn with<R>(&self, action: impl FnOnce(&mut MmioTransport<D>, &GuestMemory) -> R) -> R {
        let mut transport = self.transport();
        let result = action(&mut transport, &self.memory);
        self.interrupt_if_due(&mut transport);
        result
    }

    /// The event that becomes readable when this queue, or the device as a whole, is to be served; `None` if there is no such queue. With
    /// [`Notifications::Together`], all queues have the same event.
    pub fn work(&self, queue: usize) -> Option<&EventFd> {
        match &self.notifications {
            Notifications::Together(event) => Some(event),
            Notifications::EachQueue(events) | Notifications::Elsewhere(events) => {
                events.get(queue)
            }
        }
    }

    /// The event that interrupts the guest when it is written to, for another program that serves the queues.
    pub fn interrupt(&self) -> &EventFd {
        &self.interrupt
    }

    /// The memory in which the device's queues are.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Asks for service of all queues.
    pub fn ask_for_service(&self) {
        for event in self.notifications.events() {
            // If the counter is full, the request has been made already.
            let _ = event.write(1);
        }
    }

    fn interrupt_if_due(&self, transport: &mut MmioTransport<D>) {
        if transport.take_interrupt() {
            // If the counter is full, the interrupt is pending already.
            let _ = self.interrupt.write(1);
        }
    }

    fn transport(&self) -> MutexGuard<'_, MmioTransport<D>> {
        lock(&self.transport)
    }
}

impl<D: VirtioDevice + Send> MmioRegisters for VirtioMmio<D> {
    fn read(&self, offset: u64, data: &mut [u8]) {
        if !self.interrupt_status.read(offset, data) {
            self.transport().read(offset, data);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        if self.interrupt_status.write(offset, data) {
            return;
        }
        let effect = self.with(|transport, memory| transport.write(offset, data, memory));
        if effect == Effect::Serve {
            self.ask_for_service();
        }
    }

    fn connect(&self, vm: &VmFd, slot: &VirtioSlot) -> Result<(), MachineError> {
        let notify = IoEventAddress::Mmio(u64::from(slot.address) + u64::from(QUEUE_NOTIFY));
        match &self.notifications {
            Notifications::Together(event) => vm.register_ioevent(event, &notify, NoDatamatch),
            Notifications::EachQueue(events) | Notifications::Elsewhere(events) => (0_u32..)
                .zip(events)
                .try_for_each(|(queue, event)| vm.register_ioevent(event, &notify, queue)),
        }
        .map_err(kvm("notifications of virtio queues (KVM_IOEVENTFD)"))?;
        vm.register_irqfd(&self.interrupt, slot.gsi)
            .map_err(kvm("a virtio device's interrupt (KVM_IRQFD)"))
    }
}
