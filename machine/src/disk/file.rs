//! A file of the host with the data of a disk or of an image format. Several threads can use it at once, and don't wait for each other.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use imago::Storage;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::drivers::CommonStorageHelper;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::{Errno, retry_on_intr};

use super::{DiskError, can_be_image};
use crate::no_wait::open_without_waiting;

/// The buffer of zeroes that is written where the host can't zero a range without data.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// An open file, locked by flock(2) as long as it is open.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    path: PathBuf,
    /// The length in bytes. No other program changes it.
    length: AtomicU64,
    /// The size of the image's clusters in bytes. Reads that begin beyond the file's last cluster fail. 0 if there is no such limit.
    cluster: Arc<AtomicU64>,
    helper: CommonStorageHelper,
}

/// A limit of a [`HostFile`] that isn't set yet. It can be set when imago has the file already.
#[derive(Debug)]
#[must_use = "reads are limited once it is set"]
pub struct ClusterLimit {
    bytes: u64,
    cluster: Arc<AtomicU64>,
}

impl ClusterLimit {
    /// Makes reads fail that begin beyond the file's last cluster, because a part of the image is missing there.
    pub fn set(self) {
        self.cluster.store(self.bytes, Ordering::Relaxed);
    }
}

impl HostFile {
    /// Opens and locks the file at `path`.
    ///
    /// # Errors
    /// The file doesn't exist, is of another type, can't be written, or is in use.
    pub fn open(path: &Path, write: bool) -> Result<Self, DiskError> {
        let opened = open_without_waiting(OpenOptions::new().read(true).write(write), path);
        let (file, metadata) = opened.map_err(|source| match source.kind() {
            io::ErrorKind::IsADirectory => DiskError::NotAnImage(path.to_owned()),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if write => {
                DiskError::WriteProtected(path.to_owned())
            }
            _ => DiskError::open(path)(source),
        })?;
        if !can_be_image(metadata.file_type()) {
            return Err(DiskError::NotAnImage(path.to_owned()));
        }
        // Root can write such a file, but its mode says that it isn't to be written.
        if write && metadata.is_file() && metadata.mode() & 0o222 == 0 {
            return Err(DiskError::WriteProtected(path.to_owned()));
        }
        lock(&file, path, write)?;
        let length = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0));
        let length = length.map_err(|error| DiskError::open(path)(error.into()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            length: AtomicU64::new(length),
            cluster: Arc::default(),
            helper: CommonStorageHelper::default(),
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's length in bytes.
    pub fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// A limit of this file for an image with clusters of `bytes` bytes.
    pub fn cluster_limit(&self, bytes: u64) -> ClusterLimit {
        ClusterLimit {
            bytes,
            cluster: Arc::clone(&self.cluster),
        }
    }

    /// Fills `bytes` from `offset` on. Bytes beyond the file's end are zero.
    pub fn read_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        let cluster = self.cluster.load(Ordering::Relaxed);
        if cluster != 0 && offset >= self.length().next_multiple_of(cluster) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the image is truncated",
            ));
        }
        while !bytes.is_empty() {
            match self.file.read_at(bytes, offset) {
                Ok(0) => {
                    bytes.fill(0);
                    return Ok(());
                }
                Ok(count) => {
                    bytes = bytes.get_mut(count..).unwrap_or_default();
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        let end = offset.saturating_add(bytes.len() as u64);
        self.length.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    /// Frees the space of a range, which reads as zeroes then. Returns whether the host supports that.
    pub fn punch(&self, offset: u64, length: u64) -> io::Result<bool> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.allocate(flags, offset, length)
    }

    /// Zeroes a range. Also frees its space if `free` is set and the host supports that.
    pub fn zero(&self, offset: u64, length: u64, free: bool) -> io::Result<()> {
        let end = offset.saturating_add(length);
        if free && end <= self.length() && self.punch(offset, length)? {
            return Ok(());
        }
        if self.allocate(FallocateFlags::ZERO_RANGE, offset, length)? {
            self.length.fetch_max(end, Ordering::Relaxed);
            return Ok(());
        }
        let mut at = offset;
        while at < end {
            let step = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(ZEROES.len());
            self.write_at(ZEROES.get(..step).unwrap_or(&ZEROES), at)?;
            at += step as u64;
        }
        Ok(())
    }

    /// Writes the file's cached data to the host's disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn allocate(&self, flags: FallocateFlags, offset: u64, length: u64) -> io::Result<bool> {
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, length)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn lock(file: &File, path: &Path, write: bool) -> Result<(), DiskError> {
    let operation = if write {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(DiskError::InUse(path.to_owned())),
        Err(error) => Err(DiskError::open(path)(error.into())),
    }
}

impl fmt::Display for HostFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.path.display())
    }
}

/// The storage through which imago reads and writes images. All alignments are 1, because the host's page cache is in between.
impl Storage for HostFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.length())
    }

    fn resolve_relative_path<P: AsRef<Path>>(&self, relative: P) -> io::Result<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        std::path::absolute(folder.join(relative))
    }

    fn get_filename(&self) -> Option<PathBuf> {
        Some(self.path.clone())
    }

    // SAFETY: no caller's condition is needed: `HostFile`'s own functions are safe for any range, also at the same time.
    unsafe fn pure_readv(&self, bytes: IoVectorMut<'_>, mut offset: u64) -> io::Result<()> {
        for mut slice in bytes.into_inner() {
            self.read_at(&mut slice, offset)?;
            offset += slice.len() as u64;
        }
        Ok(())
    }

    // SAFETY: no caller's condition is needed: `HostFile`'s own functions are safe for any range, also at the same time.
    unsafe fn pure_writev(&self, bytes: IoVector<'_>, mut offset: u64) -> io::Result<()> {
        for slice in bytes.into_inner() {
            self.write_at(&slice, offset)?;
            offset += slice.len() as u64;
        }
        Ok(())
    }

    // SAFETY: no caller's condition is needed: `HostFile`'s own functions are safe for any range, also at the same time.
    unsafe fn pure_write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.zero(offset, length, true)
    }

    // SAFETY: no caller's condition is needed: `HostFile`'s own functions are safe for any range, also at the same time.
    unsafe fn pure_write_allocated_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.zero(offset, length, false)
    }

    // SAFETY: no caller's condition is needed: `HostFile`'s own functions are safe for any range, also at the same time.
    unsafe fn pure_discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.punch(offset, length).map(|_| ())
    }

    /// Does nothing, because there are no buffers here.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Self::sync(self)
    }

    /// Does nothing, because there is no cache here.
    // SAFETY: no caller's condition is needed: nothing is done.
    unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }
}
