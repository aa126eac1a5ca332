//! The machine's virtio devices: their registers and interrupts, and the threads that serve them. For the console, also the host's ends of
//! the ports, and the service of its queues on the event thread.

mod access;
mod balloon;
mod block;
mod device;
mod entropy;
mod mmio;
mod service;
mod thread;

pub use access::{GuestAccess, UnknownGuestAccess};
pub use balloon::{BalloonControl, BalloonParts, BalloonRecord};
pub use block::{BlockParts, BlockRecord};
pub use device::{ConsoleDevice, ConsolePorts, ConsoleRecord};
pub use entropy::{EntropyMonitor, EntropySource};
pub use mmio::{Assembled, MmioRegisters, Notifications, VirtioMmio, VirtioParts};
pub use service::ConsoleService;
pub use thread::{DeviceThread, Ending, borrowed};
