//! Virtio 1.2 devices behind the virtio-mmio transport, as plain state machines over guest memory.
//!
//! The guest's driver is never trusted. If it violates the specification, or passes invalid addresses, it loses the queue in question,
//! and nothing else happens: there is no panic, no loop of a length that it chooses, no access outside guest memory.
//!
//! Section numbers in comments are those of *Virtual I/O Device (VIRTIO) Version 1.2*.

pub mod block;
mod chain;
pub mod console;
pub mod entropy;
pub mod fs;
mod mmio;
pub mod net;
mod queue;
mod take_over;
mod turn;
pub mod vsock;

pub use mmio::{
    Effect, InterruptStatus, MmioTransport, QUEUE_NOTIFY, QUEUE_READY, REGISTERS_SIZE, STATUS,
    TransportCounts,
};
pub use queue::{Direction, QUEUE_FEATURES, QueueError, QueueLayout, Virtqueue};

/// Guest memory of the devices.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;

/// A device behind a transport.
pub trait VirtioDevice {
    /// The kind of device (section 5).
    fn device_id(&self) -> u32;

    /// The device's own feature bits, and the bits among [`QUEUE_FEATURES`] that it uses. The transport adds its own.
    fn features(&self) -> u64;

    /// The number of queues.
    fn queue_count(&self) -> usize;

    /// Maximum number of entries of each queue: a power of two.
    fn queue_size_max(&self) -> u16;

    /// The device's present configuration; beyond its end it reads as zero.
    fn configuration(&self) -> Vec<u8>;

    /// Notes that the driver is ready and has accepted these features. Queues are served from now on.
    fn driver_ok(&mut self, _features: u64) {}

    /// Restores the initial state after a reset by the driver, which can come at any moment. Work that can't be done here must be
    /// done before queues are served again.
    fn reset(&mut self);
}
