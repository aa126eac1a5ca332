//! A client of the framed protocol (`guest/abi/WIRE.md`), over the host socket.
//!
//! A [`Connection`] and its devices can be used from several threads at once: while one is
//! blocked in a read, another may send an ioctl.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use kvmprof_abi::pcs::PROF_ALL;
//! use kvmprof_abi::wire::device;
//! use kvmprof_client::Connection;
//!
//! let connection = Connection::connect(Path::new("/run/kvmprof/guest.sock"))?;
//! let status = connection.snapshot(device::STATUS, 1 << 20)?;
//! println!("{}", String::from_utf8_lossy(&status));
//!
//! // Records of all ticks, a buffer at a time.
//! let pcs = connection.open(device::PCS, 0)?;
//! pcs.ioctl(PROF_ALL, 0)?;
//! let buffer = pcs.read(1024)?;
//! println!("{} bytes", buffer.len());
//! # Ok::<(), kvmprof_client::ClientError>(())
//! ```
#![forbid(unsafe_code)]

mod connection;
mod device;
mod error;
mod peer;
mod runtime_folder;

pub use connection::Connection;
pub use device::{PendingRead, Readiness, RemoteDevice};
pub use error::ClientError;
pub use peer::stranger;
pub use runtime_folder::{RuntimeFolderError, live_sockets, named_socket, runtime_folder};
