//! Files for results. They have data of the guest, which only the user of the command may read: they are made with mode 0600, links aren't
//! followed, and no other user's file is written to.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, openat, statat};

use super::MAGIC;
use super::folder::OutputFolder;

/// Maximum number of names that are tried for a temporary file.
const ATTEMPTS: u32 = 100;

/// The mode of new files: only their owner may read what a guest does.
const MODE: u32 = 0o600;
/// The mode of new folders.
const FOLDER_MODE: u32 = 0o700;
/// What the name of a recording ends in when a newer one has taken its own.
const OLDER: &str = ".old";
/// Maximum number of bytes of a file that are unpacked by gzip to see the first bytes of its content: a stream of empty blocks has none.
const PACKED_START: u64 = 64 << 10;

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
    /// An older recording has no place.
    #[error(
        "the recording that is there can't be kept: its name with .old at the end is a folder's, so remove that folder, or choose another name"
    )]
    NoPlaceForOlder,
}

impl From<RefusedOutput> for io::Error {
    fn from(refused: RefusedOutput) -> Self {
        Self::new(ErrorKind::PermissionDenied, refused)
    }
}

/// Opens the file at `path` for writing in place, from its start on; its contents stay. It is made, with mode 0600, if it doesn't
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
    pending: Option<UnnamedFile>,
}

/// A file that doesn't have its own name yet.
#[derive(Debug)]
struct UnnamedFile {
    folder: OutputFolder,
    temporary: OsString,
    name: OsString,
    /// What a recording called `name` is called from then on; `None` where what is there isn't kept.
    older: Option<OsString>,
}

impl NewFile {
    /// Makes a file that will be at `path`.
    ///
    /// # Errors
    /// The folder doesn't exist or takes no files, or an older file may not be written to; [`RefusedOutput`] as the error's source.
    pub fn create(path: &Path) -> io::Result<Self> {
        match Self::beside(path)? {
            Some(file) => Ok(file),
            None => Self::in_place(path),
        }
    }

    /// What is at `path`, written to at once, as by [`open_in_place`].
    ///
    /// # Errors
    /// As [`open_in_place`].
    pub fn in_place(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: open_in_place(path)?,
            pending: None,
        })
    }

    /// As [`create`](Self::create), for a recording: when it gets its name, an older recording isn't gone, but has `.old` at the end of its name,
    /// in the place of what was called so before. What is at `path` now and is no recording isn't kept.
    ///
    /// # Errors
    /// As for [`create`](Self::create), and [`RefusedOutput::NoPlaceForOlder`].
    pub fn create_recording(path: &Path) -> io::Result<Self> {
        Self::create(path)?.keeping_older()
    }

    /// As [`create_recording`](Self::create_recording), only where a file is made: `None` if there is something else than a regular file.
    ///
    /// # Errors
    /// As for [`create_recording`](Self::create_recording).
    pub fn create_recording_beside(path: &Path) -> io::Result<Option<Self>> {
        Self::beside(path)?.map(Self::keeping_older).transpose()
    }

    /// Makes a file that will be at `path`; `None` if there is something else than a regular file.
    fn beside(path: &Path) -> io::Result<Option<Self>> {
        let (folder, name) = OutputFolder::of(path)?;
        match folder.find(&name)? {
            None => {}
            Some(found) if is_file(&found) => {
                // A write-protected file isn't replaced either. It may have become a pipe without a reader, for which an open waits otherwise.
                folder.open(&name, OFlags::WRONLY | OFlags::NONBLOCK)?;
            }
            Some(_) => return Ok(None),
        }
        let (file, temporary) = create_beside(&folder, &name)?;
        let pending = UnnamedFile {
            folder,
            temporary,
            name,
            older: None,
        };
        Ok(Some(Self {
            file,
            pending: Some(pending),
        }))
    }

    fn keeping_older(mut self) -> io::Result<Self> {
        let Some(pending) = &mut self.pending else {
            return Ok(self);
        };
        let mut older = pending.name.clone();
        older.push(OLDER);
        let found = pending.folder.find(&older)?;
        let is_taken = found.is_some_and(|found| kind(&found) == FileType::Directory);
        let is_kept = is_recording_at(&pending.folder, &pending.name);
        if is_kept && is_taken {
            return Err(RefusedOutput::NoPlaceForOlder.into());
        }
        // Where there is nothing, a recording may come until this one gets its name.
        if !is_taken && (is_kept || pending.folder.find(&pending.name)?.is_none()) {
            pending.older = Some(older);
        }
        Ok(self)
    }

    /// Gives the file its name, which replaces an older file, unless that is a recording that is to be [kept](Self::create_recording). A second
    /// call does nothing.
    ///
    /// # Errors
    /// The file can't be renamed, or the older recording can't, for example because another user's file has its new name in a folder
    /// like `/tmp`. The older file still exists, under one name or the other.
    pub fn keep(&mut self) -> io::Result<()> {
        if let Some(pending) = &self.pending {
            pending.keep(&self.file)?;
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
        pending.is_some_and(|pending| !matches!(pending.folder.find(&pending.name), Ok(None)))
    }

    /// Another descriptor of the file.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn another(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl UnnamedFile {
    fn keep(&self, file: &File) -> io::Result<()> {
        let Self { folder, name, .. } = self;
        if !folder.has(&self.temporary, file) {
            return Err(io::Error::new(
                ErrorKind::NotFound,
                "its file isn't under its temporary name any more",
            ));
        }
        if let Some(older) = &self.older
            && folder.find(name)?.is_some_and(|found| is_file(&found))
        {
            match folder.rename(name, older) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let why = format!(
                        "the recording that is there can't be renamed to {}: {error}",
                        older.display()
                    );
                    return Err(io::Error::new(error.kind(), why));
                }
                _ => {}
            }
        }
        hand_over(file);
        folder.rename(&self.temporary, name)
    }
}

/// The user and the group that have called this program through sudo(8); `None` for any other call, or user than root.
fn invoker() -> Option<(Uid, Gid)> {
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    let is_root = rustix::process::geteuid().is_root();
    let (user, group) = (number("SUDO_UID")?, number("SUDO_GID")?);
    // -1 would leave the owner as it is.
    (is_root && user != u32::MAX && group != u32::MAX)
        .then(|| (Uid::from_raw(user), Gid::from_raw(group)))
}

/// Makes `file` the [`invoker`]'s. It stays root's where this process may not do that.
fn hand_over(file: &File) {
    if let Some((user, group)) = invoker() {
        let _ = rustix::fs::fchown(file, Some(user), Some(group));
    }
}

/// Makes the result at `path` the user's who has called this program through sudo(8), as [`NewFile::keep`] does by itself. It stays root's if it isn't
/// root's own regular file.
pub fn give_to_invoker(path: &Path) {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let Ok(file) = file else {
        return;
    };
    let is_own = |found: fs::Metadata| found.is_file() && found.uid() == 0 && found.nlink() == 1;
    if file.metadata().is_ok_and(is_own) {
        hand_over(&file);
    }
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn is_file(found: &Stat) -> bool {
    kind(found) == FileType::RegularFile
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
            let _ = pending.folder.remove(&pending.temporary, &self.file);
        }
    }
}

/// Whether there is a recording at `path`, compressed by gzip or not, also where `path` is a link to it. Only the start of the file is
/// read; pipes and devices aren't.
pub fn is_recording(path: &Path) -> bool {
    is_recording_at(CWD, path)
}

/// As [`is_recording`], for `name` in an open folder.
fn is_recording_at(folder: impl AsFd, name: impl AsRef<Path>) -> bool {
    let (folder, name) = (folder.as_fd(), name.as_ref());
    if !statat(folder, name, AtFlags::empty()).is_ok_and(|found| is_file(&found)) {
        return false;
    }
    // It may have become a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else {
        return false;
    };
    let mut file = File::from(file);
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return false;
    }
    begins_a_recording(&file)
        || file.rewind().is_ok() && begins_a_recording(MultiGzDecoder::new(file.take(PACKED_START)))
}

/// Whether `input` begins as a recording does.
fn begins_a_recording(mut input: impl Read) -> bool {
    let mut start = [0; MAGIC.len()];
    input.read_exact(&mut start).is_ok() && start == MAGIC
}

/// The prefix of temporary names of a file called `name`. Programs that look for results skip names that begin with a dot.
fn temporary_start(name: &OsStr) -> OsString {
    let mut start = OsString::from(".");
    start.push(name);
    start.push(".");
    start
}

/// Makes a file with a unique name in the folder, in which it will be called `name`.
fn create_beside(folder: &OutputFolder, name: &OsStr) -> io::Result<(File, OsString)> {
    let mut result = Err(ErrorKind::AlreadyExists.into());
    for attempt in 0..ATTEMPTS {
        let mut temporary = temporary_start(name);
        temporary.push(format!("{}-{attempt}", std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        match folder.open(&temporary, flags) {
            Ok(file) => return Ok((file.into(), temporary)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => result = Err(error),
            Err(error) => return Err(error),
        }
    }
    result
}

#[cfg(test)]
mod tests;
