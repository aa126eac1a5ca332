//! Virtio 1.2 devices behind the virtio-mmio transport, as plain state machines over guest memory.
//!
//! The guest's driver is never trusted. What it puts where it has no business to, or in a way that
//! the specification forbids, costs it the queue in question and nothing else: no panic, no loop
//! whose length it chooses, no access outside guest memory.
//!
//! Sections that comments name are those of *Virtual I/O Device (VIRTIO) Version 1.2*.

pub mod console;
mod mmio;
mod queue;

pub use mmio::{
    Effect, InterruptStatus, MmioTransport, QUEUE_NOTIFY, REGISTERS_SIZE, TransportCounts,
};
pub use queue::{Direction, QueueError, QueuePlace, Virtqueue};

/// Guest memory as the devices see it.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;

/// What a device brings along beside its transport.
pub trait VirtioDevice {
    /// The kind of device (section 5).
    fn device_id(&self) -> u32;

    /// The device's own feature bits; the transport adds its own.
    fn features(&self) -> u64;

    /// How many queues it has.
    fn queue_count(&self) -> usize;

    /// Entries that each queue has at most: a power of two.
    fn queue_size_max(&self) -> u16;

    /// The device's configuration as it is now; what is beyond its end reads as zero.
    fn configuration(&self) -> Vec<u8>;

    /// The driver is ready, with these features agreed on: queues are served from now on.
    fn driver_ok(&mut self, features: u64);

    /// The driver has reset the device, at any moment: it has to be as it was at first. What can't
    /// be done here and now has to be done before queues are served again.
    fn reset(&mut self);
}
