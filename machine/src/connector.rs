//! A process that connects to Unix sockets on behalf of a contained kvmprof. kvmprof itself may not connect: a process that may connect to one
//! socket may connect to any, and some sockets start programs.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use kvmprof_recording::file::OutputFolder;
use kvmprof_sandbox::process::{self, FileRights};
use kvmprof_sandbox::user::User;
use rustix::fs::{FileType, OFlags, fstat};
use rustix::process::geteuid;

use crate::helper::{Answer, Helper};
use crate::unix_socket;

/// A connecting process. It connects to the sockets at these paths, which its requests name by their indexes. Dropping it ends the process.
#[derive(Debug)]
pub struct SocketConnector {
    helper: Helper,
    paths: Vec<PathBuf>,
}

impl SocketConnector {
    /// Forks the process; `None` if there are no paths. It keeps no right of a superuser but that to use other users' files.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork(paths: Vec<PathBuf>) -> io::Result<Option<Self>> {
        if paths.is_empty() {
            return Ok(None);
        }
        let known = paths.clone();
        let server = || {
            process::keep_file_rights(FileRights::Access)?;
            Ok(move |asked: &[u8]| connect_to_one(&known, asked))
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-socket", server) }?;
        Ok(Some(Self { helper, paths }))
    }

    /// A connector that is a thread of this process, which isn't contained: for programs that contain other threads.
    ///
    /// # Errors
    /// The host gives no socket or thread.
    pub fn on_thread(paths: Vec<PathBuf>) -> io::Result<Self> {
        let known = paths.clone();
        let answer = move |asked: &[u8]| connect_to_one(&known, asked);
        let helper = Helper::on_thread("connector", answer)?;
        Ok(Self { helper, paths })
    }

    /// Connects to the socket at this path, which must be one of the connector's. Reads of the connection wait for data, but this call doesn't wait
    /// until the server accepts.
    ///
    /// # Errors
    /// No server listens at the path, or too many connections wait for the server already.
    pub fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        let index = self.paths.iter().position(|known| known == path);
        let index = index.and_then(|index| u8::try_from(index).ok());
        let index = index.ok_or_else(|| io::Error::other("it isn't on the command line"))?;
        Ok(self.helper.ask_for_one(&[index])?.into())
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

/// Connects to the socket whose index is asked for, without waiting for a server that doesn't accept. Reads of the connection wait.
fn connect_to_one(paths: &[PathBuf], asked: &[u8]) -> Answer {
    let path = match asked {
        [index] => paths.get(usize::from(*index)),
        _ => None,
    };
    let path = path.ok_or("it isn't on the command line")?;
    let connected = unix_socket::connect(path).and_then(|stream| {
        stream.set_nonblocking(false)?;
        Ok(vec![stream.into()])
    });
    connected.map_err(|error| error.to_string())
}

/// The sockets to which a guest's socket device leads: in one folder, with names that end in the number of a port.
#[derive(Debug)]
pub struct PortSockets {
    folder: OutputFolder,
    /// The part of the names before the number.
    start: OsString,
    /// Who may own the sockets besides this process's user.
    owner: u32,
}

impl PortSockets {
    /// Those at `path` with `_` and a number behind it. The folder is looked up now, and not again.
    ///
    /// # Errors
    /// The folder can't be opened.
    pub fn at(path: &Path) -> io::Result<Self> {
        let (folder, mut start) = OutputFolder::of(path)?;
        start.push("_");
        Ok(Self {
            owner: fstat(&folder)?.st_uid,
            folder,
            start,
        })
    }

    /// Connects to the socket of `port`, without waiting. The connection doesn't block. Links aren't followed. The socket has to belong to root, to this
    /// process's user or to the folder's owner: others could have put it there only where anybody may, and kvmprof would connect to it with its own rights.
    ///
    /// # Errors
    /// There is no listener, too many clients wait there already, or it is another user's.
    pub fn connect(&self, port: u32) -> io::Result<UnixStream> {
        let mut name = self.start.clone();
        name.push(port.to_string());
        let file = self.folder.open(&name, OFlags::PATH)?;
        let found = fstat(&file)?;
        let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
        let trusted = [0, self.owner, geteuid().as_raw()];
        if !is_socket || !trusted.contains(&found.st_uid) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        // That very file, whatever its name is by now.
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        unix_socket::connect(Path::new(&place))
    }

    /// Whether the folder belongs to this process's user. Then so do the sockets, unless they are root's.
    fn is_own(&self) -> bool {
        self.owner == geteuid().as_raw()
    }

    fn answer(&self, asked: &[u8]) -> Answer {
        let port = asked.try_into().map(u32::from_le_bytes);
        let port = port.map_err(|_| "it isn't a port".to_owned())?;
        let stream = self.connect(port).map_err(|error| error.to_string())?;
        Ok(vec![stream.into()])
    }
}

/// What connects to the sockets of ports.
#[derive(Debug)]
pub enum PortConnector {
    /// This process.
    Own(PortSockets),
    /// Another one. Dropping this ends the process.
    Helper(Helper),
}

impl PortConnector {
    /// Forks a process that connects to the sockets of ports at `path`, and to no others. It becomes `user` if there is one. Otherwise it keeps no right of
    /// a superuser, but that to use other users' files where the folder is another user's.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// As [`SocketConnector::fork`].
    pub unsafe fn fork(path: &Path, user: Option<&User>) -> io::Result<Self> {
        let server = || {
            if let Some(user) = user {
                process::become_user(user)?;
            }
            // The socket isn't there yet, and without its folder the guest doesn't start.
            let sockets = PortSockets::at(path);
            let rights = match &sockets {
                Ok(sockets) if !sockets.is_own() => FileRights::Access,
                _ => FileRights::None,
            };
            process::keep_file_rights(rights)?;
            Ok(move |asked: &[u8]| match &sockets {
                Ok(sockets) => sockets.answer(asked),
                Err(error) => Err(error.to_string()),
            })
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-vsock", server) };
        Ok(Self::Helper(helper?))
    }

    /// A connector that is a thread of this process, which isn't contained: for programs that contain other threads.
    ///
    /// # Errors
    /// The host gives no socket or thread, or the folder can't be opened.
    pub fn on_thread(path: &Path) -> io::Result<Self> {
        let sockets = PortSockets::at(path)?;
        let helper = Helper::on_thread("connector", move |asked: &[u8]| sockets.answer(asked));
        Ok(Self::Helper(helper?))
    }

    /// Connects to the socket of `port`, as [`PortSockets::connect`].
    ///
    /// # Errors
    /// As [`PortSockets::connect`].
    pub fn connect(&self, port: u32) -> io::Result<UnixStream> {
        match self {
            Self::Own(sockets) => sockets.connect(port),
            Self::Helper(helper) => Ok(helper.ask_for_one(&port.to_le_bytes())?.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn only_sockets_of_the_command_line_are_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let [named, other] = ["named", "other"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&named).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let nowhere = folder.path().join("nowhere");
        let paths = vec![named.clone(), nowhere.clone()];
        let connector = SocketConnector::on_thread(paths).unwrap();
        let why = |path: &Path| connector.connect(path).unwrap_err().to_string();
        assert_eq!(why(&other), "it isn't on the command line");
        assert!(why(&nowhere).contains("No such file"));
        for asked in [&[2][..], &[0, 0], other.as_os_str().as_encoded_bytes()] {
            let refused = connector.helper.ask(asked).unwrap_err().to_string();
            assert_eq!(refused, "it isn't on the command line", "{asked:?}");
        }
        let mut stream = connector.connect(&named).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        // Reading waits: the byte comes from another thread.
        let writer = thread::spawn(move || served.write_all(b"a").unwrap());
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        writer.join().unwrap();
        assert_eq!(&byte, b"a");
        // A caller that can't wait gets an error.
        let mut stream = connect(Some(&connector), &named).unwrap();
        let _served = listener.accept().unwrap();
        let error = stream.read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_guest_leads_to_numbered_sockets_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let listening = |name: &str| UnixListener::bind(path(name)).unwrap();
        let listeners = ["guest_0", "guest_4294967295"].map(listening);
        let connector = PortConnector::on_thread(&path("guest")).unwrap();
        for (port, listener) in [0, u32::MAX].into_iter().zip(listeners) {
            connector.connect(port).unwrap();
            listener.accept().unwrap();
        }
        // Paths that aren't a port's socket.
        let _others = ["guest", "guest_", "guest_01", "other"].map(listening);
        fs::write(path("guest_2"), "").unwrap();
        symlink("other", path("guest_3")).unwrap();
        for port in [1, 2, 3] {
            assert!(connector.connect(port).is_err(), "{port}");
        }
        let PortConnector::Helper(helper) = &connector else {
            panic!("a thread");
        };
        for asked in [&b"\0\0\0"[..], b"\0\0\0\0\0", b"/run/systemd/private"] {
            let refused = helper.ask(asked).unwrap_err().to_string();
            assert_eq!(refused, "it isn't a port");
        }
    }

    /// The folder is looked up once: if its path changes later, the guest still gets the first one.
    #[test]
    fn a_guest_stays_in_the_folder_that_was_there_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["own", "other"] {
            fs::create_dir(path(name)).unwrap();
        }
        let connector = PortConnector::on_thread(&path("own/guest")).unwrap();
        let _other = UnixListener::bind(path("other/guest_1")).unwrap();
        fs::rename(path("own"), path("moved")).unwrap();
        symlink("other", path("own")).unwrap();
        assert!(connector.connect(1).is_err());
        let _own = UnixListener::bind(path("moved/guest_1")).unwrap();
        connector.connect(1).unwrap();
    }

    #[test]
    fn sockets_of_strangers_are_not_connected_to() {
        if !geteuid().is_root() {
            return crate::not_run::not_run("only root can give files away");
        }
        const OWNER: Option<u32> = Some(65533);
        const STRANGER: Option<u32> = Some(65534);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let listening = |port: u32, owner| {
            let path = path(&format!("guest_{port}"));
            let listener = UnixListener::bind(&path).unwrap();
            chown(&path, owner, None).unwrap();
            listener
        };
        let owners = [(1, None), (2, OWNER), (3, STRANGER)];
        let _listeners = owners.map(|(port, owner)| listening(port, owner));
        let reached = || {
            let sockets = PortSockets::at(&path("guest")).unwrap();
            let reached = [1, 2, 3].map(|port| sockets.connect(port).is_ok());
            (reached, sockets.is_own())
        };
        assert_eq!(reached(), ([true, false, false], true));
        chown(folder.path(), OWNER, None).unwrap();
        assert_eq!(reached(), ([true, true, false], false));
    }
}
