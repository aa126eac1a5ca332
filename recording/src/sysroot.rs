//! Files of the guest in a folder of the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

/// A folder that stands for the guest's `/`.
#[derive(Debug)]
pub struct Sysroot {
    folder: OwnedFd,
    path: PathBuf,
}

impl Sysroot {
    /// The folder at `path`.
    ///
    /// # Errors
    /// It can't be opened, or is no folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            folder: open(path, flags, Mode::empty())?,
            path: path.to_owned(),
        })
    }

    /// Opens the guest's file at `path`. Neither `..` nor a symbolic link leads out of the folder: both are followed as
    /// the guest would (`RESOLVE_IN_ROOT`, openat2(2)).
    ///
    /// # Errors
    /// There is none, or what is there is no ordinary file.
    pub fn file(&self, path: &str) -> io::Result<File> {
        // A device or a pipe mustn't hold us up, nor a terminal become ours.
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

    /// The guest's file at `path` as text, at most `limit` bytes of it.
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

    /// Where the guest's file at `path` is on the host, to tell people.
    pub fn shown(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_leads_out_of_the_folder() {
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
        for path in [
            "out",
            "absolute",
            "../secret",
            "/usr/../../secret",
            "/loop",
            "/usr",
            "/none",
            "",
            "a\0b",
        ] {
            assert!(sysroot.text(path, 9).is_err(), "{path}");
            assert_eq!(sysroot.read(path, 9), None, "{path}");
        }
        assert!(Sysroot::open(&root.join("usr/lib/libc")).is_err());
        assert!(Sysroot::open(&folder.path().join("none")).is_err());
    }
}
