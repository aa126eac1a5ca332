//! The folder of an output. It is looked up once; what is made, renamed and removed in it afterwards is so by its open descriptor and a name in it. So
//! nothing that happens to the path meanwhile leads elsewhere.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

/// An open folder.
#[derive(Debug)]
pub struct OutputFolder(OwnedFd);

impl OutputFolder {
    /// The folder of `path`, and the name in it.
    ///
    /// # Errors
    /// There is no such folder, or the path names no file in one.
    pub fn of(path: &Path) -> io::Result<(Self, OsString)> {
        let Some(name) = path.file_name() else {
            return Err(ErrorKind::IsADirectory.into());
        };
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(ErrorKind::IsADirectory.into());
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())?;
        Ok((Self(folder), name.to_owned()))
    }

    /// Opens what is called `name`, and doesn't follow a link. With `OFlags::CREATE` it is made, with mode 0600.
    ///
    /// # Errors
    /// The system's, of openat(2).
    pub fn open(&self, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(
            &self.0,
            name,
            flags,
            Mode::RUSR | Mode::WUSR,
        )?)
    }

    /// What is called `name`, which may be a link; `None` if there is nothing.
    ///
    /// # Errors
    /// The system's, of fstatat(2).
    pub fn find(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether `name` is that of this open file.
    pub fn has(&self, name: &OsStr, file: impl AsFd) -> bool {
        let same =
            |found: &Stat, open: &Stat| (found.st_dev, found.st_ino) == (open.st_dev, open.st_ino);
        let found = self.find(name).ok().flatten();
        let open = rustix::fs::fstat(file).ok();
        found
            .zip(open)
            .is_some_and(|(found, open)| same(&found, &open))
    }

    /// Renames `old` to `new`, in the place of a file with that name.
    ///
    /// # Errors
    /// The system's, of renameat(2).
    pub fn rename(&self, old: &OsStr, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, old, &self.0, new)?)
    }

    /// Removes `name`, if it is that of this open file.
    ///
    /// # Errors
    /// The system's, of unlinkat(2).
    pub fn remove(&self, name: &OsStr, file: impl AsFd) -> io::Result<()> {
        if self.has(name, file) {
            rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?;
        }
        Ok(())
    }
}

impl AsFd for OutputFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_path_that_is_replaced_has_no_effect() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir(path("folder")).unwrap();
        fs::create_dir(path("other")).unwrap();
        for folder in ["folder", "other"] {
            fs::write(path(folder).join("file"), folder).unwrap();
        }
        let (folder, name) = OutputFolder::of(&path("folder/file")).unwrap();
        let file = folder.open(&name, OFlags::RDONLY).unwrap();
        fs::rename(path("folder"), path("moved")).unwrap();
        std::os::unix::fs::symlink(path("other"), path("folder")).unwrap();
        folder.rename(&name, OsStr::new("new")).unwrap();
        assert_eq!(fs::read(path("moved/new")).unwrap(), b"folder");
        folder.remove(OsStr::new("new"), &file).unwrap();
        assert!(!path("moved/new").exists());
        assert_eq!(fs::read(path("folder/file")).unwrap(), b"other");
    }

    #[test]
    fn only_the_same_file_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, "own").unwrap();
        let (folder, name) = OutputFolder::of(&path).unwrap();
        let own = File::open(&path).unwrap();
        fs::rename(&path, place.path().join("own")).unwrap();
        fs::write(&path, "another's").unwrap();
        folder.remove(&name, &own).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"another's");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("own", &path).unwrap();
        folder.remove(&name, &own).unwrap();
        assert!(fs::symlink_metadata(&path).is_ok());
        assert!(folder.open(&name, OFlags::RDONLY).is_err());
        // If nothing exists, there is nothing to do.
        folder.remove(OsStr::new("none"), &own).unwrap();
    }

    #[test]
    fn paths_without_a_file_name_are_refused() {
        for path in ["", "/", "..", "file/", "none/file"] {
            assert!(OutputFolder::of(Path::new(path)).is_err(), "{path:?}");
        }
    }
}
