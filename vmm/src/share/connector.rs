//! A process that connects again to programs that serve folders, when their devices are reset. A contained kvmprof may not do so: a process that
//! may connect to one socket may connect to any, and behind some of them are programs that start others.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::options::{ShareOptions, ShareSource};
use crate::helper::Helper;
use crate::unix_socket::connect;

/// The connection to that process, which ends when this is dropped.
#[derive(Debug)]
pub struct SocketConnector(Helper);

impl SocketConnector {
    /// Forks the process for the sockets among these folders; `None` if there are none. It connects to these and no others, and keeps no rights
    /// of a superuser but to reach other users' files.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork(shares: &[ShareOptions]) -> io::Result<Option<Self>> {
        let path = |share: &ShareOptions| match &share.source {
            ShareSource::Socket(path) => Some(path.clone()),
            ShareSource::Folder { .. } => None,
        };
        let paths: Vec<PathBuf> = shares.iter().filter_map(path).collect();
        let keep_rights = kvmprof_sandbox::process::keep_file_rights;
        let open = |path: &PathBuf| connect_waiting(path);
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork_opener(c"kvmprof-socket", paths, keep_rights, open) };
        Ok(helper?.map(Self))
    }

    /// Connects to the socket at this path, which is one of those from the start.
    ///
    /// # Errors
    /// Nobody listens there, or too many wait for that one already.
    pub(super) fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        self.0.open(path).map(UnixStream::from)
    }
}

/// Connects without waiting for a server that doesn't accept. Reads of the connection wait.
fn connect_waiting(path: &Path) -> io::Result<OwnedFd> {
    let stream = connect(path)?;
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::helper::open_named;

    #[test]
    fn only_sockets_of_the_command_line_are_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let [named, other] = ["named", "other"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&named).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let nowhere = folder.path().join("nowhere");
        let paths = [named.clone(), nowhere.clone()];
        let open = |path: &PathBuf| connect_waiting(path);
        let ask = |path: &Path| open_named(&paths, path.as_os_str().as_bytes(), &open);
        assert_eq!(ask(&other).unwrap_err(), "it isn't on the command line");
        assert!(ask(&nowhere).unwrap_err().contains("No such file"));
        let file: OwnedFd = ask(&named).unwrap().into_iter().next().unwrap();
        let mut stream = UnixStream::from(file);
        let (mut served, _) = listener.accept().unwrap();
        // Reading waits: the byte comes from another thread.
        let writer = thread::spawn(move || served.write_all(b"a").unwrap());
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        writer.join().unwrap();
        assert_eq!(&byte, b"a");
    }
}
