//! Access to the guest's files in a folder of the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

/// A folder that acts as the guest's `/`.
#[derive(Debug)]
pub struct Sysroot {
    folder: OwnedFd,
    path: PathBuf,
}

impl Sysroot {
    /// The folder at `path`.
    ///
    /// # Errors
    /// The folder can't be opened, or isn't a folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            folder: open(path, flags, Mode::empty())?,
            path: path.to_owned(),
        })
    }

    /// Opens the guest's file at `path`. `..` and symbolic links are followed as in the guest, and don't leave the
    /// folder (`RESOLVE_IN_ROOT`, openat2(2)).
    ///
    /// # Errors
    /// There is no file, or it isn't a regular one.
    pub fn file(&self, path: &str) -> io::Result<File> {
        // Opening a device or a pipe must not block, and a terminal must not become the controlling one.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let path = path.trim_start_matches('/');
        let file: File = openat2(&self.folder, path, flags, Mode::empty(), resolve)?.into();
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// The guest's file at `path` as text, at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Self::file`].
    pub fn text(&self, path: &str, limit: u64) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.file(path)?.take(limit).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The whole of the guest's file at `path`. `None` if it can't be read, or has more than `limit` bytes.
    pub fn read(&self, path: &str, limit: u64) -> Option<Vec<u8>> {
        let file = self.file(path).ok()?;
        if file.metadata().ok()?.len() > limit {
            return None;
        }
        let mut contents = Vec::new();
        file.take(limit).read_to_end(&mut contents).ok()?;
        Some(contents)
    }

    /// The host's path of the guest's file at `path`, for messages.
    pub fn shown(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn paths_cannot_leave_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(folder.path().join("secret"), "secret").unwrap();
        std::fs::write(root.join("usr/lib/libc"), "libc").unwrap();
        symlink("/usr/lib", root.join("lib")).unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink(folder.path().join("secret"), root.join("absolute")).unwrap();
        let sysroot = Sysroot::open(&root).unwrap();
        assert_eq!(sysroot.text("/lib/libc", 3).unwrap(), "lib");
        assert_eq!(sysroot.text("/../../usr/lib/libc", 9).unwrap(), "libc");
        for path in ["/lib/libc", "usr/lib/libc"] {
            assert_eq!(sysroot.read(path, 4).as_deref(), Some(&b"libc"[..]));
        }
        assert_eq!(sysroot.read("/lib/libc", 3), None);
        let wrong = "out absolute ../secret /usr/../../secret /loop /usr /none  a\0b";
        for path in wrong.split(' ') {
            assert!(sysroot.text(path, 9).is_err(), "{path}");
            assert_eq!(sysroot.read(path, 9), None, "{path}");
        }
        assert!(Sysroot::open(&root.join("usr/lib/libc")).is_err());
        assert!(Sysroot::open(&folder.path().join("none")).is_err());
    }
}
