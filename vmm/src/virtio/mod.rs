//! The virtio console device in this machine: its registers and interrupt, what is at the ports'
//! host ends, and the serving of its queues on the event thread.

mod access;
mod device;
mod service;

pub use access::{GuestAccess, UnknownGuestAccess};
pub use device::{ConsoleDevice, ConsolePorts, ConsoleRecord};
pub use service::ConsoleService;
