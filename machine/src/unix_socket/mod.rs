//! Unix stream sockets that don't block: connecting, and socket files to listen on.

mod error;
mod listener;
mod path_lock;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

pub use error::SocketFileError;
pub use listener::{SocketListener, SocketName, check_user};

/// Connects without waiting: a server that doesn't accept counts as absent.
///
/// # Errors
/// There is no listener at `path`, or too many clients wait there already.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
