//! The machine's virtio devices: their registers and interrupts, and the threads that serve them. For the console, also the host's ends of
//! the ports, and the service of its queues on the event thread.

mod block;
mod device;
mod entropy;
mod mmio;
mod service;
mod slots;
mod thread;

pub use block::BlockParts;
pub use device::{ConsoleDevice, ConsolePorts};
pub use entropy::EntropySource;
pub use kvmprof_devices::endpoint::{GuestAccess, UnknownGuestAccess};
pub use mmio::{
    Assembled, DeviceMonitor, MmioRegisters, Notifications, VirtioMmio, VirtioParts, queue_events,
};
pub use service::ConsoleService;
pub use slots::VirtioSlot;
pub(crate) use slots::slots;
pub use thread::{DeviceThread, Ending, borrowed};
