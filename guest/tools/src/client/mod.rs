//! A client of the framed protocol (`guest/abi/WIRE.md`), over the host socket.
//!
//! A [`Connection`] and its devices can be used from several threads at once: while one is
//! blocked in a read, another may send an ioctl.

mod connection;
mod device;
mod error;

pub use connection::Connection;
pub use device::{PendingRead, Readiness, RemoteDevice};
pub use error::ClientError;
