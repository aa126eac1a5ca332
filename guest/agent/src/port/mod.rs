//! The way to kvmprof: a port of the virtio console, or kvmprof's socket.

mod connection;
mod place;

pub use connection::{Connection, ConnectionError, Outgoing};
pub use place::{PORT_NAME, Place, PlaceError};
