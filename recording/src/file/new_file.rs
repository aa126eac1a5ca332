//! Files for results. They have data of the guest, which only the user of the command may read: they are made with mode 0600, links aren't
//! followed, and no other user's file is written to.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Maximum number of names that are tried for a temporary file.
const ATTEMPTS: u32 = 100;

/// The mode of new files: only their owner may read what a guest does.
const MODE: u32 = 0o600;
/// The mode of new folders.
const FOLDER_MODE: u32 = 0o700;

/// Why a result isn't written to an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedOutput {
    /// Another user may have made it, in a folder that all can write to.
    #[error("it is a symbolic link: name the file that it leads to")]
    Link,
    /// Its owner could read the guest's data.
    #[error("it belongs to user {0}: remove it, or choose another name")]
    OtherOwner(u32),
    /// It is a disk, a socket or the like.
    #[error("it is neither a file nor a pipe, terminal or other character device")]
    Kind,
    /// There is something else than a folder.
    #[error("it is no folder: remove it, or choose another name")]
    NoFolder,
}

impl From<RefusedOutput> for io::Error {
    fn from(refused: RefusedOutput) -> Self {
        Self::new(ErrorKind::PermissionDenied, refused)
    }
}

/// Opens the file at `path` for writing in place, from its begin on; its contents stay. It is made, with mode 0600, if it doesn't
/// exist. Pipes and character devices are opened as they are, also by a link such as `/dev/stdout`.
///
/// # Errors
/// [`RefusedOutput`] as the error's source; the folder doesn't exist or takes no files, or the file may not be written to.
pub fn open_in_place(path: &Path) -> io::Result<File> {
    open_checked(path, false, false)
}

/// As [`open_in_place`], but a regular file is emptied.
///
/// # Errors
/// As [`open_in_place`].
pub fn create_in_place(path: &Path) -> io::Result<File> {
    let file = open_in_place(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// As [`open_in_place`], for reading, too. If it must be `new`, it must not exist.
///
/// # Errors
/// As [`open_in_place`].
pub fn open_to_append(path: &Path, new: bool) -> io::Result<File> {
    open_checked(path, true, new)
}

/// Makes a folder with mode 0700 at `path`, with those above it, or uses the existing one if it belongs to the user and isn't a link. The owner
/// of any other folder could change the files of a result.
///
/// # Errors
/// [`RefusedOutput`] as the error's source; the folder can't be made.
pub fn create_folder(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut folders = DirBuilder::new();
            return folders.recursive(true).mode(FOLDER_MODE).create(path);
        }
        Err(error) => return Err(error),
        Ok(found) if found.is_symlink() => return Err(RefusedOutput::Link.into()),
        Ok(found) if !found.is_dir() => return Err(RefusedOutput::NoFolder.into()),
        Ok(_) => {}
    }
    // It may have become another one.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let owner = options.open(path)?.metadata()?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(RefusedOutput::OtherOwner(owner).into());
    }
    Ok(())
}

/// Writes `bytes` to a [`NewFile`] at `path`, and keeps it.
///
/// # Errors
/// As [`NewFile::create`] and [`NewFile::keep`]; the disk is full.
pub fn write_new_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes)?;
    file.keep()
}

fn open_checked(path: &Path, read: bool, new: bool) -> io::Result<File> {
    if !new && fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        return open_linked(path);
    }
    let flags = OFlags::NOFOLLOW | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(read)
        .write(true)
        .create(true)
        .create_new(new)
        .truncate(false)
        .mode(MODE)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    check(&file)?;
    Ok(file)
}

/// Opens the target of a link if it isn't a regular file. A link to standard output or error is opened in any case.
fn open_linked(path: &Path) -> io::Result<File> {
    let Ok(found) = fs::metadata(path) else {
        return Err(RefusedOutput::Link.into());
    };
    for own in [io::stdout().as_fd(), io::stderr().as_fd()] {
        let file = File::from(own.try_clone_to_owned()?);
        let metadata = file.metadata()?;
        if (metadata.dev(), metadata.ino()) == (found.dev(), found.ino()) {
            return Ok(file);
        }
    }
    if found.is_file() {
        return Err(RefusedOutput::Link.into());
    }
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(path)?;
    // It may have become another one.
    if file.metadata()?.is_file() {
        return Err(RefusedOutput::Link.into());
    }
    check(&file)?;
    Ok(file)
}

/// Checks an open file: other users could read their files and pipes. A character device is always accepted.
fn check(file: &File) -> Result<(), io::Error> {
    let found = file.metadata()?;
    let (kind, owner) = (found.file_type(), found.uid());
    let is_own = owner == rustix::process::geteuid().as_raw();
    if kind.is_char_device() || is_own && (kind.is_file() || kind.is_fifo()) {
        return Ok(());
    }
    if kind.is_file() || kind.is_fifo() {
        return Err(RefusedOutput::OtherOwner(owner).into());
    }
    Err(RefusedOutput::Kind.into())
}

/// A new file with mode 0600, under a temporary name in its folder. [`keep`](Self::keep) gives it its own name, and replaces an older
/// file, which is complete until then. The new file is removed if it is dropped before.
///
/// If there is something else than a regular file (a device, a pipe), it is opened and written to at once, as by [`open_in_place`].
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
    /// The folder doesn't exist or takes no files, or an older file may not be written to; [`RefusedOutput`] as the error's source.
    pub fn create(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(found) if found.is_file() => {
                // A write-protected file isn't replaced either.
                OpenOptions::new()
                    .write(true)
                    .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                    .open(path)?;
            }
            _ => {
                return Ok(Self {
                    file: open_in_place(path)?,
                    pending: None,
                });
            }
        }
        let path = path.to_owned();
        let (file, temporary) = create_beside(&path)?;
        Ok(Self {
            file,
            pending: Some(Pending { temporary, path }),
        })
    }

    /// Gives the file its name, which replaces an older file. A second call does nothing.
    ///
    /// # Errors
    /// The file can't be renamed. The older file still exists.
    pub fn keep(&mut self) -> io::Result<()> {
        if let Some(pending) = &self.pending {
            fs::rename(&pending.temporary, &pending.path)?;
            self.pending = None;
        }
        Ok(())
    }

    /// Has the system write all of it to the disk.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Removes temporary files that killed programs have left of the file at `path`. If another program is writing one right now,
    /// its [`keep`](Self::keep) fails.
    ///
    /// # Errors
    /// The folder can't be read, or a file not be removed.
    pub fn remove_unfinished(path: &Path) -> io::Result<()> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let start = temporary_start(name);
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().as_bytes().starts_with(start.as_bytes()) {
                match fs::remove_file(entry.path()) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Whether there is an older file, which [`keep`](Self::keep) would replace.
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
            // A temporary file that can't be removed does no harm.
            let _ = fs::remove_file(&pending.temporary);
        }
    }
}

/// The prefix of temporary names of a file called `name`. Programs that look for results skip names that begin with a dot.
fn temporary_start(name: &OsStr) -> OsString {
    let mut start = OsString::from(".");
    start.push(name);
    start.push(".");
    start
}

/// Makes a file with a unique name in the folder of `path`.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let Some(name) = path.file_name() else {
        return Err(ErrorKind::IsADirectory.into());
    };
    let mut result = Err(ErrorKind::AlreadyExists.into());
    for attempt in 0..ATTEMPTS {
        let mut hidden = temporary_start(name);
        hidden.push(format!("{}-{attempt}", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MODE)
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

    fn refused<T: std::fmt::Debug>(result: io::Result<T>) -> RefusedOutput {
        let error = result.unwrap_err();
        *error.get_ref().unwrap().downcast_ref().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn files_are_for_their_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (new, in_place) = (folder.path().join("new"), folder.path().join("in place"));
        NewFile::create(&new).unwrap().keep().unwrap();
        create_in_place(&in_place).unwrap();
        assert_eq!((mode(&new), mode(&in_place)), (0o600, 0o600));
        let (outer, inner) = (
            folder.path().join("outer"),
            folder.path().join("outer/inner"),
        );
        for _ in 0..2 {
            create_folder(&inner).unwrap();
            assert_eq!((mode(&outer), mode(&inner)), (0o700, 0o700));
        }
    }

    #[test]
    fn what_a_killed_program_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for name in [".out.1-0", ".out.77-3", ".other.1-0", "out.1", ".out"] {
            fs::write(folder.path().join(name), "half").unwrap();
        }
        write_new_file(&path, b"whole").unwrap();
        NewFile::remove_unfinished(&path).unwrap();
        assert_eq!(names(folder.path()), [".other.1-0", ".out", "out", "out.1"]);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        fs::write(path("precious"), "old").unwrap();
        symlink(path("precious"), path("link")).unwrap();
        symlink(path("none"), path("loose")).unwrap();
        for link in ["link", "loose"] {
            assert_eq!(refused(NewFile::create(&path(link))), RefusedOutput::Link);
            assert_eq!(refused(create_in_place(&path(link))), RefusedOutput::Link);
            assert_eq!(
                refused(open_to_append(&path(link), false)),
                RefusedOutput::Link
            );
        }
        assert_eq!(fs::read(path("precious")).unwrap(), b"old");
        symlink(folder.path(), path("folder")).unwrap();
        for link in ["folder", "loose"] {
            assert_eq!(refused(create_folder(&path(link))), RefusedOutput::Link);
        }
        let file = create_folder(&path("precious"));
        assert_eq!(refused(file), RefusedOutput::NoFolder);
        assert_eq!(
            names(folder.path()),
            ["folder", "link", "loose", "precious"]
        );
    }

    #[test]
    fn what_was_named_on_purpose_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("nothing");
        symlink("/dev/null", &link).unwrap();
        create_in_place(&link).unwrap().write_all(b"lost").unwrap();
        // Standard output of tests is a pipe or a file.
        NewFile::create(Path::new("/dev/stdout")).unwrap();
        let pipe = folder.path().join("pipe");
        let owner = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, owner).unwrap();
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&pipe);
        let mut reader = reader.unwrap();
        NewFile::create(&pipe)
            .unwrap()
            .write_all(b"through")
            .unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "through");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(create_in_place(&socket).is_err());
    }

    #[test]
    fn files_and_pipes_of_others_are_not_written_into() {
        if !rustix::process::geteuid().is_root() {
            return crate::not_run::not_run("only root can give files away");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("theirs");
        fs::write(&path, "theirs").unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let other = RefusedOutput::OtherOwner(65534);
        assert_eq!(refused(create_in_place(&path)), other);
        assert_eq!(refused(open_to_append(&path, false)), other);
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        let their_folder = folder.path().join("their folder");
        fs::create_dir(&their_folder).unwrap();
        std::os::unix::fs::chown(&their_folder, Some(65534), None).unwrap();
        assert_eq!(refused(create_folder(&their_folder)), other);
        // A new file takes the place of theirs, and is the user's own.
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"ours").unwrap();
        file.keep().unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600));
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
