//! The user of the program at the other end of a Unix socket.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// The user of the program at the other end of a connected Unix socket; `None` if that is root or this program's own user, which are
/// trusted. For a server it is the user at its call of listen(2), for a client that at its call of connect(2) (`SO_PEERCRED`, unix(7)).
///
/// # Errors
/// The system doesn't know the user, for example because it isn't a connected Unix socket.
pub fn stranger(socket: &impl AsFd) -> io::Result<Option<u32>> {
    // rustix has no answer for a process of another PID namespace, which has no pid in this one.
    let peer = getsockopt(socket, PeerCredentials)?.uid();
    let is_trusted = peer == 0 || peer == rustix::process::geteuid().as_raw();
    Ok((!is_trusted).then_some(peer))
}
