//! The files of the spool. Each is written under another name, flushed and renamed, so that it is either complete or not there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SpoolError;
use crate::batch::Batch;

/// Modes of the folder and its files, and the mode bits of other users: these may not read what guests run.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const OTHERS: u32 = 0o077;
/// The extensions of batches, of incomplete files, and of damaged ones that are set aside.
const BATCH: &str = "batch";
const UNFINISHED: &str = "tmp";
const DAMAGED: &str = "damaged";
/// The file whose blocks a document takes on a full disk.
const SPARE: &str = "spare";
/// Documents are filled up with spaces to multiples of this length, so that one fits into the blocks of another.
const DOCUMENT_UNIT: usize = 4096;
/// Maximum length of an unpacked batch in bytes, far above what the limits of guests allow.
const MAX_BATCH: u64 = 1 << 30;
/// The level of zstd.
const LEVEL: i32 = 3;

/// A batch in the spool, as its file's name describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub number: u64,
    /// The start of its windows, in s since 1970.
    pub start: u64,
    /// Number of its windows.
    pub windows: u64,
    /// Number of ticks in the windows' rows.
    pub ticks: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
}

impl Entry {
    /// The entry for `batch`, whose file isn't written yet.
    pub fn new(number: u64, batch: &Batch) -> Self {
        Self {
            number,
            start: batch.start,
            windows: batch.windows.len() as u64,
            ticks: batch.ticks(),
            bytes: 0,
        }
    }

    /// The name of its file.
    pub fn name(&self) -> String {
        let Self {
            number,
            start,
            windows,
            ticks,
            ..
        } = self;
        format!("{number:016}-{start}-{windows}-{ticks}.{BATCH}")
    }

    fn parse(name: &str, bytes: u64) -> Option<Self> {
        let numbers = name.strip_suffix(BATCH)?.strip_suffix('.')?;
        let mut numbers = numbers.split('-').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        let entry = Self {
            number: next()?,
            start: next()?,
            windows: next()?,
            ticks: next()?,
            bytes,
        };
        (entry.name() == name).then_some(entry)
    }
}

/// The spool's folder, which belongs to this user and which no other collector uses.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Holds the lock of the folder.
    handle: File,
}

impl Folder {
    /// Opens the folder at `path`, and makes it if there is none.
    pub fn open(path: &Path) -> Result<Self, SpoolError> {
        let failed = |source| SpoolError::Folder {
            path: path.to_owned(),
            source,
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE);
        builder.create(path).map_err(failed)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let handle = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .map_err(failed)?;
        let found = handle.metadata().map_err(failed)?;
        let is_own = found.uid() == rustix::process::geteuid().as_raw();
        if !is_own || found.mode() & OTHERS != 0 {
            return Err(SpoolError::NotOwn(path.to_owned()));
        }
        flock(&handle, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| SpoolError::InUse(path.to_owned()))?;
        let folder = Self {
            path: path.to_owned(),
            handle,
        };
        match folder.keep_spare() {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(folder),
        }
    }

    /// Makes the file [`SPARE`] if there is none.
    fn keep_spare(&self) -> Result<(), SpoolError> {
        if self.path.join(SPARE).exists() {
            return Ok(());
        }
        self.write(SPARE, &[b' '; DOCUMENT_UNIT])
    }

    /// The batches in it, ordered by number. Removes files that a killed collector has left incomplete.
    pub fn batches(&self) -> Result<Vec<Entry>, SpoolError> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.path).map_err(|source| self.failed(source))? {
            let file = file.map_err(|source| self.failed(source))?;
            let name = file.file_name();
            let name = name.to_str().unwrap_or_default();
            if name.ends_with(UNFINISHED) {
                self.remove(name)?;
                continue;
            }
            let length = file.metadata().map_or(0, |found| found.len());
            entries.extend(Entry::parse(name, length));
        }
        entries.sort_by_key(|entry| entry.number);
        Ok(entries)
    }

    /// Writes a batch. Returns the length of its file in bytes. Fails if there is no spare room for the documents that a batch needs later.
    pub fn write_batch(&self, entry: &Entry, batch: &Batch) -> Result<u64, SpoolError> {
        self.keep_spare()?;
        let json = serde_json::to_vec(batch).map_err(|source| self.failed(source.into()))?;
        let mut packer =
            zstd::Encoder::new(Vec::new(), LEVEL).map_err(|source| self.failed(source))?;
        let packed = packer
            .include_checksum(true)
            .and_then(|()| packer.write_all(&json))
            .and_then(|()| packer.finish());
        let packed = packed.map_err(|source| self.failed(source))?;
        self.write(&entry.name(), &packed)?;
        Ok(packed.len() as u64)
    }

    /// Reads a batch.
    pub fn read_batch(&self, entry: &Entry) -> Result<Batch, SpoolError> {
        let path = self.path.join(entry.name());
        let damaged = |source| SpoolError::Damaged {
            path: path.clone(),
            source,
        };
        let file = File::open(&path).map_err(damaged)?;
        let unpacker = zstd::Decoder::new(file).map_err(damaged)?;
        let mut json = Vec::new();
        unpacker
            .take(MAX_BATCH)
            .read_to_end(&mut json)
            .map_err(damaged)?;
        serde_json::from_slice(&json).map_err(|source| damaged(source.into()))
    }

    /// Reads a document. `None` if there is none of that name.
    pub fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, SpoolError> {
        let path = self.path.join(name);
        let damaged = |source| SpoolError::Damaged {
            path: path.clone(),
            source,
        };
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(damaged)?,
        };
        let document = serde_json::from_slice(&bytes);
        document.map(Some).map_err(|source| damaged(source.into()))
    }

    /// Gives a file that is damaged another name: without it the collector can start. It replaces an earlier one of that name.
    pub fn set_aside(&self, name: &str, damage: &SpoolError) -> Result<(), SpoolError> {
        let aside = self.path.join(format!("{name}.{DAMAGED}"));
        fs::rename(self.path.join(name), &aside).map_err(|source| self.failed(source))?;
        let cause = std::error::Error::source(damage);
        let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
        log::error!("{damage}{cause}: it is set aside as {}", aside.display());
        Ok(())
    }

    /// Writes a document, which replaces one of the same name. On a full disk it takes the blocks of the spare file, and the replaced file becomes the next spare one.
    pub fn write_json(&self, name: &str, document: &impl Serialize) -> Result<(), SpoolError> {
        let mut json = serde_json::to_vec(document).map_err(|source| self.failed(source.into()))?;
        json.resize(json.len().next_multiple_of(DOCUMENT_UNIT), b' ');
        match self.write(name, &json) {
            Err(error) if error.is_full() => self.write_into_spare(name, &json).map_err(|_| error),
            written => written,
        }
    }

    fn write_into_spare(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (spare, path) = (self.path.join(SPARE), self.path.join(name));
        // It isn't truncated, so that it keeps its blocks.
        let mut file = OpenOptions::new().write(true).open(&spare)?;
        file.write_all(bytes)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        match renameat_with(CWD, &spare, CWD, &path, RenameFlags::EXCHANGE) {
            // There is no file to exchange with, so that no spare file would be left.
            Err(Errno::NOENT) => return Err(Errno::NOENT.into()),
            // The file system can't exchange files: there is no spare file until there is room again.
            Err(_) => fs::rename(&spare, &path)?,
            Ok(()) => {}
        }
        self.handle.sync_all()
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file, which replaces one of the same name.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), SpoolError> {
        let unfinished = self.path.join(format!("{name}.{UNFINISHED}"));
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(FILE_MODE)
                .open(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.path.join(name))?;
            self.handle.sync_all()
        };
        write().map_err(|source| {
            // The incomplete file would take room.
            let _ = fs::remove_file(&unfinished);
            self.failed(source)
        })
    }

    /// Removes a file. It isn't an error if there is none.
    pub fn remove(&self, name: &str) -> Result<(), SpoolError> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
            _ => Ok(()),
        }
    }

    /// The error that the folder can't be used, with this cause.
    pub fn failed(&self, source: io::Error) -> SpoolError {
        SpoolError::Folder {
            path: self.path.clone(),
            source,
        }
    }
}
