//! Character devices of this process, with the kernel's CUSE.

mod channel;
mod permissions;
pub mod protocol;

pub use channel::{CUSE, Channel, ChannelError, DeviceNumber};
pub use permissions::Permissions;
