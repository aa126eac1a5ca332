//! A virtio device between the vCPU threads, which access its registers, and the threads that serve its queues.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use kvmprof_devices::virtio::{
    Effect, InterruptStatus, MmioTransport, QUEUE_NOTIFY, STATUS, VirtioDevice,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::thread::DeviceThread;
use crate::lock::lock;
use crate::machine::{GuestMemory, MachineError, VirtioSlot};

/// What is to become a virtio device of a machine, before there is guest memory.
pub trait VirtioParts: Send {
    /// Makes the device, whose queues lie in `memory`, and starts the threads that serve it, if it has its own.
    ///
    /// # Errors
    /// If the host lacks something.
    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError>;
}

/// A virtio device of a machine.
pub struct Assembled {
    /// Its registers.
    pub registers: Arc<dyn MmioRegisters>,
    /// The threads that serve it; none if the event thread does. They end when the vCPUs have.
    pub threads: Vec<DeviceThread>,
}

/// The registers of a device, as vCPU threads and KVM see them. Usable from any thread.
pub trait MmioRegisters: Send + Sync {
    /// Answers a read at `offset` from the first register.
    fn read(&self, offset: u64, data: &mut [u8]);

    /// Answers a write at `offset` from the first register.
    fn write(&self, offset: u64, data: &[u8]);

    /// Connects the device with KVM, so that neither a notification by the guest nor an interrupt for it stops a vCPU
    /// thread.
    ///
    /// # Errors
    /// If KVM refuses that.
    fn connect(&self, vm: &VmFd, slot: &VirtioSlot) -> Result<(), MachineError>;

    /// Resets the device, as its driver would: memory isn't touched before there is a driver again.
    fn reset(&self) {
        self.write(STATUS.into(), &[0; 4]);
    }
}

/// What becomes readable when the guest's driver notifies a queue.
pub enum Notifications {
    /// One event for all queues: they are looked at together, in an order of the device's own.
    Together(EventFd),
    /// An event for each queue, by its index.
    EachQueue(Vec<EventFd>),
    /// As before, but it is another program that waits for the events, and interrupts the guest by [`VirtioMmio::interrupt`].
    Elsewhere(Vec<EventFd>),
}

impl Notifications {
    /// An event for each of `queues` queues.
    ///
    /// # Errors
    /// If there are no more file descriptors.
    pub fn each_queue(queues: usize) -> io::Result<Self> {
        let events: io::Result<_> = (0..queues).map(|_| EventFd::new(EFD_NONBLOCK)).collect();
        events.map(Self::EachQueue)
    }

    fn events(&self) -> &[EventFd] {
        match self {
            Self::Together(event) => std::slice::from_ref(event),
            Self::EachQueue(events) | Self::Elsewhere(events) => events,
        }
    }
}

/// A virtio device behind registers in memory, usable from any thread.
///
/// One lock over registers and queues: once a driver's reset has returned, its memory isn't touched any more. Whoever holds
/// it does a bounded amount of work, and waits for nothing that depends on the host's disks or networks: a vCPU that
/// accesses a register waits for it. What an interrupt handler accesses needs no lock.
pub struct VirtioMmio<D> {
    transport: Mutex<MmioTransport<D>>,
    interrupt_status: InterruptStatus,
    memory: GuestMemory,
    notifications: Notifications,
    interrupt: EventFd,
}

impl<D: VirtioDevice + Send> VirtioMmio<D> {
    /// `device`, whose queues lie in `memory`.
    ///
    /// # Errors
    /// If there are no more file descriptors.
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
        self.with_locked(self.transport(), action)
    }

    /// The same, if nobody works on the device at this moment: for who must not wait for that.
    pub fn try_with<R>(
        &self,
        action: impl FnOnce(&mut MmioTransport<D>, &GuestMemory) -> R,
    ) -> Option<R> {
        let transport = match self.transport.try_lock() {
            Ok(transport) => transport,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.with_locked(transport, action))
    }

    fn with_locked<R>(
        &self,
        mut transport: MutexGuard<'_, MmioTransport<D>>,
        action: impl FnOnce(&mut MmioTransport<D>, &GuestMemory) -> R,
    ) -> R {
        let result = action(&mut transport, &self.memory);
        self.interrupt_if_due(&mut transport);
        result
    }

    /// Becomes readable when this queue, or the device as a whole, wants to be served; `None` if there is no such queue. With
    /// [`Notifications::Together`] it is the same for all queues.
    pub fn work(&self, queue: usize) -> Option<&EventFd> {
        match &self.notifications {
            Notifications::Together(event) => Some(event),
            Notifications::EachQueue(events) | Notifications::Elsewhere(events) => {
                events.get(queue)
            }
        }
    }

    /// Interrupts the guest when it is written to: for who serves the queues in place of this program.
    pub fn interrupt(&self) -> &EventFd {
        &self.interrupt
    }

    /// Where its queues lie.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Has all queues served.
    pub fn ask_for_service(&self) {
        for event in self.notifications.events() {
            // A full counter has asked already.
            let _ = event.write(1);
        }
    }

    fn interrupt_if_due(&self, transport: &mut MmioTransport<D>) {
        if transport.take_interrupt() {
            // As above.
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
        let refused = |operation| move |source| MachineError::Kvm { operation, source };
        let notify = IoEventAddress::Mmio(u64::from(slot.address) + u64::from(QUEUE_NOTIFY));
        match &self.notifications {
            Notifications::Together(event) => vm.register_ioevent(event, &notify, NoDatamatch),
            Notifications::EachQueue(events) | Notifications::Elsewhere(events) => (0_u32..)
                .zip(events)
                .try_for_each(|(queue, event)| vm.register_ioevent(event, &notify, queue)),
        }
        .map_err(refused("notifications of virtio queues (KVM_IOEVENTFD)"))?;
        vm.register_irqfd(&self.interrupt, slot.gsi)
            .map_err(refused("a virtio device's interrupt (KVM_IRQFD)"))
    }
}
