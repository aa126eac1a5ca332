//! The socket file: makes it, replaces a stale one, and removes it.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use kvmprof_recording::file::OutputFolder;
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::path_lock::PathLock;
use super::{SocketFileError, new_socket};

/// Maximum length of a path in bytes: `sun_path` without its NUL (unix(7)).
const MAX_PATH: usize = 107;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 64;

/// The name of a socket that this process has made. Dropping this removes the name, unless another file has taken it.
#[derive(Debug)]
pub struct SocketName {
    folder: OutputFolder,
    name: OsString,
    path: PathBuf,
    /// The file itself, which can't be connected to. While it is open, no other file has its inode number.
    file: OwnedFd,
}

impl SocketName {
    /// Makes the socket file `path`, with mode 0600 from the start, and listens on it. Replaces a socket
    /// that no program listens on any more. A lock on `path` + `.lock` keeps two kvmprofs that do this at once
    /// apart. The lock's file exists only during this call and during drop.
    ///
    /// # Errors
    /// [`SocketFileError`] with the reason. The file at `path` isn't changed then.
    pub fn bind(path: &Path) -> Result<(OwnedFd, Self), SocketFileError> {
        let address = address(path)?;
        let (folder, name) = open_folder(path)?;
        let lock = PathLock::take(&folder, &name, path)?;
        make_way(&folder, &name, path, &address)?;
        let failed = |action| SocketFileError::os(action, path);
        let socket = new_socket().map_err(failed("create"))?;
        // Bind gives the file the mode of the socket's own inode, less the umask.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("protect"))?;
        rustix::net::bind(&socket, &address).map_err(|errno| match errno {
            Errno::ADDRINUSE => SocketFileError::Live { path: path.into() },
            errno => failed("create")(errno),
        })?;
        // The path has to have led to the folder meanwhile.
        let file = open_socket(&folder, &name)
            .map_err(|error| SocketFileError::io("find the new socket", path, error))?;
        if let Err(errno) = rustix::net::listen(&socket, BACKLOG) {
            let _ = folder.remove(&name, &file);
            return Err(failed("listen on")(errno));
        }
        drop(lock);
        let name = Self {
            folder,
            name,
            path: path.into(),
            file,
        };
        Ok((socket, name))
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        // Under the lock the file can't be replaced between the check and the removal. Without it the file stays: the
        // next kvmprof finds it stale.
        let Ok(_lock) = PathLock::take(&self.folder, &self.name, &self.path) else {
            return;
        };
        let _ = self.folder.remove(&self.name, &self.file);
    }
}

/// A socket that kvmprof listens on. Dropping this removes its file.
#[derive(Debug)]
pub struct SocketListener {
    /// What removes the file when it is dropped.
    _name: Box<dyn Debug + Send>,
    socket: OwnedFd,
    path: PathBuf,
    /// A spare descriptor. If no descriptor is left, it is closed for a moment to accept a client and turn it away.
    /// Otherwise the listener would report that client forever.
    spare: Option<OwnedFd>,
}

impl SocketListener {
    /// Listens at `path`, as [`SocketName::bind`].
    ///
    /// # Errors
    /// As [`SocketName::bind`].
    pub fn bind(path: &Path) -> Result<Self, SocketFileError> {
        let (socket, name) = SocketName::bind(path)?;
        Ok(Self::new(socket, path, name))
    }

    /// The listener by a `socket` that has the name `path`, which `name` removes when it is dropped.
    pub fn new(socket: OwnedFd, path: &Path, name: impl Debug + Send + 'static) -> Self {
        Self {
            _name: Box::new(name),
            path: path.into(),
            spare: spare(&socket),
            socket,
        }
    }

    /// The path that clients connect to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next client, as a socket that doesn't block. If no descriptor is left ([`Errno::MFILE`],
    /// [`Errno::NFILE`]), the client is turned away.
    pub fn accept(&mut self) -> Result<OwnedFd, Errno> {
        // The last time, another thread may have taken the free descriptor.
        if self.spare.is_none() {
            self.spare = spare(&self.socket);
        }
        let client = self.accept_next();
        if matches!(client, Err(Errno::MFILE | Errno::NFILE)) {
            self.spare = None;
            drop(self.accept_next());
            self.spare = spare(&self.socket);
        }
        client
    }

    fn accept_next(&self) -> Result<OwnedFd, Errno> {
        rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }
}

/// Checks that a client belongs to the user of this program, or to root.
///
/// # Errors
/// The reason why the client is to be turned away.
pub fn check_user(client: &OwnedFd) -> Result<(), String> {
    let stranger = kvmprof_client::stranger(client);
    match stranger.map_err(|error| format!("its user is unknown: {error}"))? {
        None => Ok(()),
        Some(user) => Err(format!(
            "user {user} is neither root nor the user of kvmprof"
        )),
    }
}

/// The spare descriptor: a copy of `socket`, because the thread can't open files once it has its filter.
fn spare(socket: &OwnedFd) -> Option<OwnedFd> {
    socket.try_clone().ok()
}

impl AsFd for SocketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, SocketFileError> {
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(SocketFileError::PathTooLong {
            path: path.into(),
            length,
            maximum: MAX_PATH,
        });
    }
    if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(SocketFileError::NotAFileName { path: path.into() });
    }
    SocketAddrUnix::new(path).map_err(SocketFileError::os("use", path))
}

fn open_folder(path: &Path) -> Result<(OutputFolder, OsString), SocketFileError> {
    OutputFolder::of(path).map_err(|error| {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => SocketFileError::NoFolder {
                path: path.into(),
                folder: folder.into(),
            },
            _ => SocketFileError::io("look into", folder, error),
        }
    })
}

/// Opens the socket file `name`, for nothing but to know it.
fn open_socket(folder: &OutputFolder, name: &OsStr) -> io::Result<OwnedFd> {
    let file = folder.open(name, OFlags::PATH)?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::Socket => Ok(file),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Removes a stale socket at `path`. Any other file there is an error.
fn make_way(
    folder: &OutputFolder,
    name: &OsStr,
    path: &Path,
    address: &SocketAddrUnix,
) -> Result<(), SocketFileError> {
    let looked = |error| SocketFileError::io("look at", path, error);
    if folder.find(name).map_err(looked)?.is_none() {
        return Ok(());
    }
    let file = match open_socket(folder, name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SocketFileError::NotASocket { path: path.into() });
        }
        Err(error) => return Err(looked(error)),
    };
    let probe = new_socket().map_err(SocketFileError::os("probe", path))?;
    match rustix::net::connect(&probe, address) {
        // EAGAIN: its backlog is full. EPROTOTYPE: it is bound, as another type of socket.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
            Err(SocketFileError::Live { path: path.into() })
        }
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::CONNREFUSED) => folder
            .remove(name, &file)
            .map_err(|error| SocketFileError::io("replace the stale socket", path, error)),
        Err(errno) => Err(SocketFileError::os("probe", path)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn refused(path: &Path) -> SocketFileError {
        SocketListener::bind(path).unwrap_err()
    }

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn the_file_is_private_and_removed_with_the_listener() {
        let folder = folder();
        let path = folder.path().join("socket");
        let listener = SocketListener::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(entries(folder.path()), 1, "the lock file is gone");
        drop(listener);
        assert_eq!(entries(folder.path()), 0);
    }

    #[test]
    fn stale_socket_is_replaced() {
        let folder = folder();
        let path = folder.path().join("socket");
        // The standard library leaves the file behind, as a killed kvmprof does.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = SocketListener::bind(&path).unwrap();
        UnixStream::connect(listener.path()).unwrap();
    }

    #[test]
    fn live_socket_is_refused_and_left_alone() {
        let folder = folder();
        let path = folder.path().join("socket");
        let first = SocketListener::bind(&path).unwrap();
        let error = refused(&path);
        assert!(matches!(error, SocketFileError::Live { .. }), "{error}");
        UnixStream::connect(&path).unwrap();
        drop(first);
        let _datagram = UnixDatagram::bind(&path).unwrap();
        let error = refused(&path);
        assert!(matches!(error, SocketFileError::Live { .. }), "{error}");
    }

    #[test]
    fn other_kinds_of_files_are_refused_and_left_alone() {
        let folder = folder();
        let file = folder.path().join("file");
        fs::write(&file, "precious").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let directory = folder.path().join("directory");
        fs::create_dir(&directory).unwrap();
        for path in [&file, &link, &directory] {
            let error = refused(path);
            let is_it = matches!(error, SocketFileError::NotASocket { .. });
            assert!(is_it, "{error}");
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "precious");
        assert_eq!(entries(folder.path()), 3);
    }

    #[test]
    fn impossible_paths_are_refused() {
        let folder = folder();
        fs::write(folder.path().join("file"), "").unwrap();
        for below in ["missing/socket", "file/socket"] {
            let error = refused(&folder.path().join(below));
            assert!(matches!(error, SocketFileError::NoFolder { .. }), "{error}");
        }
        let error = refused(&folder.path().join("x".repeat(108)));
        let too_long = matches!(error, SocketFileError::PathTooLong { .. });
        assert!(too_long, "{error}");
        for path in ["", "/", "..", "socket/"] {
            let error = refused(Path::new(path));
            let is_it = matches!(error, SocketFileError::NotAFileName { .. });
            assert!(is_it, "{path:?}: {error}");
        }
    }

    #[test]
    fn longest_path_works() {
        let folder = folder();
        let room = MAX_PATH - folder.path().as_os_str().len() - 1;
        let path = folder.path().join("x".repeat(room));
        let listener = SocketListener::bind(&path).unwrap();
        UnixStream::connect(listener.path()).unwrap();
    }

    #[test]
    fn file_of_another_is_not_removed() {
        let folder = folder();
        let path = folder.path().join("socket");
        let first = SocketListener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = SocketListener::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn one_of_many_concurrent_binds_wins() {
        let folder = folder();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let results = std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| scope.spawn(|| SocketListener::bind(&path)));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        for result in &results {
            assert!(matches!(result, Ok(_) | Err(SocketFileError::Live { .. })));
        }
        UnixStream::connect(&path).unwrap();
        drop(results);
        assert_eq!(entries(folder.path()), 0);
    }
}
