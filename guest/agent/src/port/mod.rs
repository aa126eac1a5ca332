//! The way to kvmprof: a port of the virtio console, or kvmprof's socket.

mod connection;
mod location;

pub use connection::{Connection, ConnectionError, Outgoing};
pub use location::{PORT_NAME, PortLocation, PortLocationError};
