//! The guest's network devices: what they are connected to on the host, and the thread that serves each.

mod config;
mod device;
mod mac;
mod opener;
mod peer;
mod socket;
mod tap;

pub use config::{BadNetwork, NetworkConfig, PeerPlace};
pub use device::{Network, NetworkMonitor, NetworkRecord};
pub use mac::{BadMac, MacAddress};
pub use opener::TapOpener;
pub use tap::TapError;
