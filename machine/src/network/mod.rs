//! The guest's network devices: their options, the other ends of their links on the host, and the thread that serves each device.

mod config;
mod device;
mod mac;
mod peer;
mod socket;
mod tap;

pub use config::{BadNetwork, NetworkConfig, PeerAddress};
pub use device::Network;
pub use mac::{BadMac, MacAddress};
pub use tap::TapError;
