//! A process that connects to Unix sockets on behalf of a contained kvmprof. kvmprof itself may not connect: a process that may connect to one
//! socket may connect to any, and some sockets start programs.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use kvmprof_sandbox::process;
use kvmprof_sandbox::user::User;

use crate::helper::Helper;
use crate::unix_socket;

/// The sockets that the connecting process may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedSockets {
    paths: Vec<PathBuf>,
    /// Paths that are followed by `_` and the number of a port.
    of_ports: Vec<PathBuf>,
}

impl AllowedSockets {
    /// The sockets at these paths.
    pub fn at(paths: impl Iterator<Item = PathBuf>) -> Self {
        Self {
            paths: paths.collect(),
            of_ports: Vec::new(),
        }
    }

    /// The sockets of a guest's socket device, at `path` with the number of a port behind it; none without a path.
    pub fn of_ports(path: Option<PathBuf>) -> Self {
        Self {
            paths: Vec::new(),
            of_ports: path.into_iter().collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.of_ports.is_empty()
    }

    fn has(&self, path: &[u8]) -> bool {
        let is = |known: &PathBuf| known.as_os_str().as_bytes() == path;
        let leads_to = |known: &PathBuf| {
            let rest = path.strip_prefix(known.as_os_str().as_bytes());
            rest.and_then(|rest| rest.strip_prefix(b"_"))
                .is_some_and(is_port)
        };
        self.paths.iter().any(is) || self.of_ports.iter().any(leads_to)
    }
}

/// Whether `number` is a number of 32 bits in the form of a port.
fn is_port(number: &[u8]) -> bool {
    let port: Option<u32> = std::str::from_utf8(number)
        .ok()
        .and_then(|number| number.parse().ok());
    port.is_some_and(|port| port.to_string().as_bytes() == number)
}

/// The connection to the connecting process. Dropping it ends the process.
#[derive(Debug)]
pub struct SocketConnector(Helper);

impl SocketConnector {
    /// Forks the process, with this name, for these sockets; `None` if there are none. The process connects to no other sockets. It becomes `user` if
    /// there is one. Otherwise it keeps no right of a superuser but that to use other users' files.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork(
        name: &CStr,
        allowed: &AllowedSockets,
        user: Option<&User>,
    ) -> io::Result<Option<Self>> {
        if allowed.is_empty() {
            return Ok(None);
        }
        let keep_rights = || match user {
            Some(user) => process::become_user(user),
            None => process::keep_file_rights(),
        };
        let open = |asked: &OsStr| open(allowed, asked);
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork_opener(name, keep_rights, open) };
        Ok(Some(Self(helper?)))
    }

    /// A connector that is a thread of this process, which isn't contained: for programs that contain other threads.
    ///
    /// # Errors
    /// The host gives no socket or thread.
    pub fn on_thread(allowed: AllowedSockets) -> io::Result<Self> {
        let open = move |asked: &OsStr| open(&allowed, asked);
        Helper::open_on_thread("connector", open).map(Self)
    }

    /// Connects to the socket at this path, which must be one of the allowed sockets. Reads of the connection wait for data, but this call doesn't wait
    /// until the server accepts.
    ///
    /// # Errors
    /// No server listens at the path, or too many connections wait for the server already.
    pub fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        self.0.open(path).map(UnixStream::from)
    }
}

/// Connects without waiting, by `connector` if there is one, or else on this thread. The connection doesn't block.
///
/// # Errors
/// As [`SocketConnector::connect`].
pub fn connect(connector: Option<&SocketConnector>, path: &Path) -> io::Result<UnixStream> {
    let Some(connector) = connector else {
        return unix_socket::connect(path);
    };
    let stream = connector.connect(path)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Connects to the socket at this path, if it is one of `allowed`, without waiting for a server that doesn't accept. Reads of the connection wait.
fn open(allowed: &AllowedSockets, asked: &OsStr) -> Option<io::Result<OwnedFd>> {
    let connect = || {
        let stream = unix_socket::connect(Path::new(asked))?;
        stream.set_nonblocking(false)?;
        Ok(stream.into())
    };
    allowed.has(asked.as_bytes()).then(connect)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    fn allowed(paths: &[&Path], of_ports: &[&Path]) -> AllowedSockets {
        let owned = |paths: &[&Path]| paths.iter().map(|path| path.to_path_buf()).collect();
        AllowedSockets {
            paths: owned(paths),
            of_ports: owned(of_ports),
        }
    }

    #[test]
    fn only_sockets_of_the_command_line_are_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let [named, other] = ["named", "other"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&named).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let nowhere = folder.path().join("nowhere");
        let allowed = allowed(&[&named, &nowhere], &[]);
        let connector = SocketConnector::on_thread(allowed).unwrap();
        let why = |path: &Path| connector.connect(path).unwrap_err().to_string();
        assert_eq!(why(&other), "it isn't on the command line");
        assert!(why(&nowhere).contains("No such file"));
        let mut stream = connector.connect(&named).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        // Reading waits: the byte comes from another thread.
        let writer = thread::spawn(move || served.write_all(b"a").unwrap());
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        writer.join().unwrap();
        assert_eq!(&byte, b"a");
        // Whoever can't wait says so.
        let mut stream = connect(Some(&connector), &named).unwrap();
        let _served = listener.accept().unwrap();
        let error = stream.read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_guest_leads_to_numbered_sockets_only() {
        let allowed = allowed(&[], &[Path::new("/run/guest")]);
        for path in ["/run/guest_0", "/run/guest_1234", "/run/guest_4294967295"] {
            assert!(allowed.has(path.as_bytes()), "{path}");
        }
        for path in [
            "/run/guest",
            "/run/guest_",
            "/run/guest_x",
            "/run/guest_+1",
            "/run/guest_01",
            "/run/guest_1/../../systemd/private",
            "/run/guest_4294967296",
            "/run/guest1_1",
            "/run/systemd/private",
            "",
        ] {
            assert!(!allowed.has(path.as_bytes()), "{path}");
        }
    }
}
