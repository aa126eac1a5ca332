//! A file that takes the place of an older one only when it is worth it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// How many names are tried for a temporary file.
const ATTEMPTS: u32 = 100;

/// A new file under a temporary name in the folder that it is for. [`keep`](Self::keep) gives it its own name, in the
/// place of an older file, which is whole until then. Dropped before that it is removed.
///
/// What isn't a regular file (a device, a pipe) is opened and written to at once.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    pending: Option<Pending>,
}

/// A file that doesn't have its own name yet.
#[derive(Debug)]
struct Pending {
    temporary: PathBuf,
    path: PathBuf,
}

impl NewFile {
    /// Makes a file that will be at `path`.
    ///
    /// # Errors
    /// The folder doesn't exist or takes no files, or an older file may not be written to.
    pub fn create(path: &Path) -> io::Result<Self> {
        // A symbolic link stays one: what it leads to is replaced.
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(found) if found.is_file() => {
                // A file that is protected from being written to isn't replaced either.
                OpenOptions::new().write(true).open(&path)?;
            }
            _ => {
                let file = File::create(&path)?;
                return Ok(Self {
                    file,
                    pending: None,
                });
            }
        }
        let (file, temporary) = create_beside(&path)?;
        Ok(Self {
            file,
            pending: Some(Pending { temporary, path }),
        })
    }

    /// Gives the file its name; what was there before is gone. Does nothing a second time.
    ///
    /// # Errors
    /// The system doesn't rename it; the older file is still there then.
    pub fn keep(&mut self) -> io::Result<()> {
        if let Some(pending) = &self.pending {
            fs::rename(&pending.temporary, &pending.path)?;
            self.pending = None;
        }
        Ok(())
    }

    /// Whether an older file is there, which [`keep`](Self::keep) would replace.
    pub fn would_replace(&self) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|pending| pending.path.exists())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(pending) = &self.pending {
            // Where it can't be removed it is no harm.
            let _ = fs::remove_file(&pending.temporary);
        }
    }
}

/// Makes a file in the folder of `path` whose name nobody else has.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let Some(name) = path.file_name() else {
        return Err(ErrorKind::IsADirectory.into());
    };
    let mut result = Err(ErrorKind::AlreadyExists.into());
    for attempt in 0..ATTEMPTS {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{attempt}", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary);
        match made {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => result = Err(error),
            Err(error) => return Err(error),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_older_file_is_there_until_the_new_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"ne").unwrap();
        assert!(file.would_replace());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.keep().unwrap();
        file.write_all(b"w").unwrap();
        file.keep().unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_file_that_is_not_kept_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        // Two at a time don't get into each other's way.
        let second = NewFile::create(&path).unwrap();
        assert!(!file.would_replace());
        drop((file, second));
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn a_link_stays_and_its_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("out"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        symlink(&path, &link).unwrap();
        let mut file = NewFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.keep().unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_is_no_file_is_written_to_at_once() {
        let mut file = NewFile::create(Path::new("/dev/null")).unwrap();
        file.write_all(b"nothing").unwrap();
        file.keep().unwrap();
        assert!(fs::metadata("/dev/null").is_ok_and(|found| !found.is_file()));
    }

    #[test]
    fn a_folder_that_is_missing_or_stands_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(NewFile::create(&folder.path().join("none/out")).is_err());
        assert!(NewFile::create(folder.path()).is_err());
        assert!(names(folder.path()).is_empty());
    }
}
