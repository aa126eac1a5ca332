//! The tools that read profiles: same code on the host socket and on the guest nodes.

pub mod client;
pub mod device;
pub mod getpc;
pub mod interrupt;
pub mod pcstat;
