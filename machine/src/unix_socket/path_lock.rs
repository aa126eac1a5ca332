//! The lock that allows a process to change the file at the path of a socket: a locked file beside it.
//!
//! In a folder that any user can write to, the file may belong to another user, who holds its lock permanently. So the lock is taken only
//! if the file is this user's only, and the wait for it has a limit.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kvmprof_recording::file::OutputFolder;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::SocketFileError;

/// Maximum time to wait for another kvmprof, which needs the lock only for a moment.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// The bits of a mode that let others than its owner open a file.
const OTHERS: u32 = 0o077;

/// The lock of a socket. Its file exists as long as the lock is held.
pub(super) struct PathLock<'a> {
    folder: &'a OutputFolder,
    name: OsString,
    /// Holds the lock as long as it is open.
    file: File,
}

impl<'a> PathLock<'a> {
    /// Takes the lock of the socket with this name in `folder`; `socket` is its path, for messages.
    ///
    /// # Errors
    /// The file can't be made, is another user's, or stays locked for 5 s.
    pub fn take(
        folder: &'a OutputFolder,
        name: &OsStr,
        socket: &Path,
    ) -> Result<Self, SocketFileError> {
        let locks = |of: &OsStr| {
            let mut name = OsString::from(of);
            name.push(".lock");
            name
        };
        let (name, path) = (locks(name), PathBuf::from(locks(socket.as_os_str())));
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(file) = try_lock(folder, &name, &path)? {
                return Ok(Self { folder, name, file });
            }
            if Instant::now() >= deadline {
                return Err(SocketFileError::Locked { path });
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for PathLock<'_> {
    fn drop(&mut self) {
        let _ = self.folder.remove(&self.name, &self.file);
    }
}

/// Tries to take the lock; `None` while another process has it.
fn try_lock(
    folder: &OutputFolder,
    name: &OsStr,
    path: &Path,
) -> Result<Option<File>, SocketFileError> {
    // The open mustn't wait if the file is a pipe without a reader.
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK;
    let opened = folder.open(name, flags);
    let file = File::from(opened.map_err(|error| SocketFileError::io("create", path, error))?);
    let metadata = file.metadata();
    let metadata = metadata.map_err(|error| SocketFileError::io("look at", path, error))?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !is_ours || metadata.mode() & OTHERS != 0 {
        return Err(SocketFileError::StrangeLock { path: path.into() });
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::INTR | Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(SocketFileError::os("lock", path)(errno)),
    }
    // The last holder removes the file before it releases the lock, so that this file may be a removed one.
    Ok(folder.has(name, &file).then_some(file))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::Mode;

    use super::*;

    fn refused(prepare: impl FnOnce(&Path)) -> String {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let lock = folder.path().join("socket.lock");
        prepare(&lock);
        let (folder, name) = OutputFolder::of(&socket).unwrap();
        let error = PathLock::take(&folder, &name, &socket).err().unwrap();
        assert!(fs::symlink_metadata(&lock).is_ok(), "{error}");
        error.to_string()
    }

    /// Other users can hold the locks of files that they can open.
    #[test]
    fn a_lock_file_of_other_users_is_refused_at_once() {
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
        let (opened, name) = OutputFolder::of(&socket).unwrap();
        let take = || PathLock::take(&opened, &name, &socket);
        let held = take().unwrap();
        let error = take().err().unwrap();
        assert!(matches!(error, SocketFileError::Locked { .. }), "{error}");
        drop(held);
        take().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
