//! The guest's socket device: connections between the guest and Unix sockets of the host, and the thread that serves them.
//!
//! The protocol is Firecracker's: a client that connects to the socket and sends `CONNECT PORT` is connected to that port of the guest. A
//! guest that connects to port P of the host is connected to the program that listens at the socket's path with `_P` after it.

mod clients;
mod config;
mod device;
mod streams;

pub use config::{BadVsock, CID_MAX, CID_MIN, VsockConfig};
pub use device::VsockParts;
