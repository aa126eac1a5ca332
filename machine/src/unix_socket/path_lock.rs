//! The lock that allows a process to change the file at the path of a socket: a locked file beside it.
//!
//! In a folder that any user can write to, the file may belong to another user, who holds its lock for good. So the lock is taken only if
//! the file is this user's alone, and the wait for it has a limit.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::SocketFileError;

/// Maximum time to wait for another kvmprof, which needs the lock only for a moment.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// The bits of a mode that let others than its owner open a file.
const OTHERS: u32 = 0o077;

/// The identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

impl Identity {
    /// The identity of the file at `path`.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&fs::symlink_metadata(path)?))
    }
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}

/// The lock of a path. The file exists as long as the lock is held.
pub(super) struct PathLock {
    /// Holds the lock as long as it is open.
    _file: File,
    path: PathBuf,
}

impl PathLock {
    /// Takes the lock of the socket at `socket`.
    ///
    /// # Errors
    /// The file can't be made, is another user's, or stays locked for 5 s.
    pub fn take(socket: &Path) -> Result<Self, SocketFileError> {
        let mut name = OsString::from(socket);
        name.push(".lock");
        let path = PathBuf::from(name);
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(file) = try_lock(&path)? {
                return Ok(Self { _file: file, path });
            }
            if Instant::now() >= deadline {
                return Err(SocketFileError::Locked { path });
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Tries to take the lock; `None` while another process has it.
fn try_lock(path: &Path) -> Result<Option<File>, SocketFileError> {
    let failed = |action| SocketFileError::os(action, path);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // The open mustn't wait if the file is a pipe without a reader.
    let flags = flags | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(failed("create"))?);
    let metadata = file.metadata();
    let metadata = metadata.map_err(|error| SocketFileError::io("look at", path, error))?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !is_ours || metadata.mode() & OTHERS != 0 {
        return Err(SocketFileError::StrangeLock { path: path.into() });
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::INTR | Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(failed("lock")(errno)),
    }
    // The last holder removes the file before it releases the lock, so that this file may be a removed one.
    let is_there = Identity::of(path).is_ok_and(|named| named == Identity::from(&metadata));
    Ok(is_there.then_some(file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refused(prepare: impl FnOnce(&Path)) -> String {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let lock = folder.path().join("socket.lock");
        prepare(&lock);
        let error = PathLock::take(&socket).err().unwrap();
        assert!(fs::symlink_metadata(&lock).is_ok(), "{error}");
        error.to_string()
    }

    /// Strangers can hold the locks of files that they can open.
    #[test]
    fn a_lock_that_others_may_hold_is_refused_at_once() {
        let open_to_all = |path: &Path| {
            fs::write(path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        };
        let message = refused(open_to_all);
        assert!(message.contains("socket.lock isn't kvmprof's"), "{message}");
        let pipe = |path: &Path| {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
        };
        assert!(refused(pipe).contains("isn't kvmprof's"));
        refused(|path| std::os::unix::fs::symlink("/dev/null", path).unwrap());
    }

    #[test]
    fn a_lock_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return crate::not_run::not_run("only root can give files away");
        }
        let given_away = |path: &Path| {
            fs::write(path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(path, Some(65534), None).unwrap();
        };
        assert!(refused(given_away).contains("isn't kvmprof's"));
    }

    #[test]
    fn a_lock_that_stays_held_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let held = PathLock::take(&socket).unwrap();
        let error = PathLock::take(&socket).err().unwrap();
        assert!(matches!(error, SocketFileError::Locked { .. }), "{error}");
        drop(held);
        PathLock::take(&socket).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
