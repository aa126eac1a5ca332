//! The socket at which a launcher waits for its collector.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvmprof_client::stranger;
use rustix::fs::{FileType, Mode, fchmod, stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind};

/// Collectors that may wait to be accepted.
const BACKLOG: i32 = 4;
/// The time between two messages about collectors that are turned away: who may not connect may try as often as they like.
const QUIET: Duration = Duration::from_secs(10);

/// The socket. Dropping this removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// `None` once another process removes it.
    path: Option<PathBuf>,
    /// The user whose collectors are let in, besides root's and this process's.
    user: Option<u32>,
    /// When a message about one that was turned away may come again.
    next_message: Cell<Instant>,
}

impl Listener {
    /// Listens at `path`. What another launcher has left there is removed.
    ///
    /// # Errors
    /// Another launcher listens there, there is something else, or the system refuses it.
    pub fn bind(path: &Path, user: Option<u32>) -> anyhow::Result<Self> {
        let shown = path.display();
        let cannot = || format!("Cannot make the launcher's socket {shown}");
        let address = SocketAddrUnix::new(path).with_context(cannot)?;
        make_way(path, &address)?;
        let socket = new_socket().with_context(cannot)?;
        // Bind gives the file the mode of the socket's own inode, less the umask. Who may pass is decided when it connects.
        let everybody = Mode::from_raw_mode(0o666);
        let only_own = Mode::RUSR | Mode::WUSR;
        let mode = user.map_or(only_own, |_| everybody);
        fchmod(&socket, mode).with_context(cannot)?;
        bind(&socket, &address).with_context(cannot)?;
        let listener = Self {
            socket,
            path: Some(path.to_owned()),
            user,
            next_message: Cell::new(Instant::now()),
        };
        if user.is_some() {
            rustix::fs::chmod(path, mode).with_context(cannot)?;
        }
        rustix::net::listen(&listener.socket, BACKLOG).with_context(cannot)?;
        Ok(listener)
    }

    /// Leaves the socket to another process that has it.
    pub fn leave(mut self) {
        self.path = None;
    }

    /// The next collector that has connected: `None` if there is none, or if it is another user's.
    pub fn accept(&self) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = accept_with(&self.socket, flags).ok()?;
        let why = match stranger(&connection) {
            Ok(None) => return Some(connection),
            Ok(Some(user)) if self.user == Some(user) => return Some(connection),
            Ok(Some(user)) => format!("it is user {user}'s, who isn't attach.user"),
            Err(error) => format!("its user is unknown: {error}"),
        };
        if Instant::now() >= self.next_message.get() {
            self.next_message.set(Instant::now() + QUIET);
            log::warn!("A collector was turned away: {why}");
        }
        None
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The folder is this user's, or nobody else's than root's: nobody has put another file there.
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket for messages.
pub(crate) fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    Ok(socket?)
}

/// Removes a socket at which nobody listens any more.
fn make_way(path: &Path, address: &SocketAddrUnix) -> anyhow::Result<()> {
    let shown = path.display();
    match stat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno).with_context(|| format!("Cannot look at {shown}")),
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
            bail!("{shown} exists and isn't a socket: remove it or choose another attach.launcher")
        }
        Ok(_) => {}
    }
    match rustix::net::connect(&new_socket()?, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path)
            .with_context(|| format!("Cannot replace the stale socket {shown}")),
        Err(Errno::NOENT) => Ok(()),
        _ => bail!("Another program listens at {shown}: end it or choose another attach.launcher"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn connect(path: &Path) -> OwnedFd {
        let socket = new_socket().unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn a_socket_is_there_until_its_launcher_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("launcher.sock");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let listener = Listener::bind(&path, None).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(listener.accept().is_none());
        let _client = connect(&path);
        assert!(listener.accept().is_some());
        let error = Listener::bind(&path, None).unwrap_err().to_string();
        assert!(error.contains("Another program listens"), "{error}");
        drop(listener);
        assert!(!path.exists());
        // A killed launcher leaves it.
        Listener::bind(&path, None).unwrap().leave();
        assert!(path.exists());
        let listener = Listener::bind(&path, Some(4711)).unwrap();
        assert_eq!(mode(), 0o666);
        drop(listener);
        std::fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&path, None).unwrap_err().to_string();
        assert!(error.contains("isn't a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
