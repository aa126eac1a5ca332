//! The backing of guest memory on the host: the options of `--memory`, and the file behind shared memory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kvmprof_recording::file::OutputFolder;
use rustix::fs::{FlockOperation, MemfdFlags, OFlags, flock, ftruncate, memfd_create};

use crate::error::MachineError;

/// Magic number of hugetlbfs (statfs(2)).
const HUGETLBFS: i64 = 0x9584_58f6;

/// Size of the huge pages behind guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// 2 MiB.
    TwoMebibytes,
    /// 1 GiB.
    OneGibibyte,
}

impl HugePages {
    /// The size in words.
    fn name(self) -> &'static str {
        match self {
            Self::TwoMebibytes => "2 MiB",
            Self::OneGibibyte => "1 GiB",
        }
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::TwoMebibytes => 2 << 20,
            Self::OneGibibyte => 1 << 30,
        }
    }

    /// The flag of memfd_create(2).
    fn flag(self) -> MemfdFlags {
        match self {
            Self::TwoMebibytes => MemfdFlags::HUGE_2MB,
            Self::OneGibibyte => MemfdFlags::HUGE_1GB,
        }
    }

    /// The folder with the host kernel's counts of such pages (kernel: Documentation/admin-guide/mm/hugetlbpage.rst).
    fn folder(self) -> PathBuf {
        let kibibytes = self.bytes() / 1024;
        format!("/sys/kernel/mm/hugepages/hugepages-{kibibytes}kB").into()
    }

    fn count(self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.folder().join(name)).ok()?;
        text.trim().parse().ok()
    }

    /// Number of pages that a guest can get: free ones that aren't reserved for another process. `None` if the host has no pages of this
    /// size.
    fn available(self) -> Option<u64> {
        let free = self.count("free_hugepages")?;
        Some(free.saturating_sub(self.count("resv_hugepages").unwrap_or(0)))
    }

    /// Checks that the host can give `bytes`, as far as its counts show.
    fn check(self, bytes: u64) -> Result<(), MachineError> {
        if !bytes.is_multiple_of(self.bytes()) {
            return Err(MachineError::UnevenHugePages {
                bytes,
                pages: self.name(),
            });
        }
        let needed = bytes / self.bytes();
        match self.available() {
            None => Err(MachineError::NoHugePages(self.name())),
            Some(available) if available < needed => Err(self.too_few(needed, available)),
            Some(_) => Ok(()),
        }
    }

    fn too_few(self, needed: u64, available: u64) -> MachineError {
        let total = self.count("nr_hugepages").unwrap_or(0);
        MachineError::TooFewHugePages {
            pages: self.name(),
            needed,
            available,
            command: format!(
                "echo {} > {}",
                total + needed.saturating_sub(available),
                self.folder().join("nr_hugepages").display()
            ),
        }
    }
}

/// The backing of guest memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryBacking {
    /// Memory of this process alone.
    #[default]
    Private,
    /// A memfd (memfd_create(2)), which can be shared with programs that serve devices.
    Shared,
    /// A memfd of huge pages, which the host has to have reserved (hugetlb).
    HugePages(HugePages),
    /// A file, which is made if it doesn't exist. An existing file has to be empty, or as long as the memory. Its contents are lost.
    File(PathBuf),
}

/// The size and the backing of a guest's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The size in bytes: a multiple of 4 KiB, at least [`crate::layout::MEMORY_MIN`].
    pub bytes: u64,
    /// The backing.
    pub backing: MemoryBacking,
}

impl MemoryOptions {
    /// This many bytes of private memory.
    #[must_use]
    pub fn private(bytes: u64) -> Self {
        Self {
            bytes,
            backing: MemoryBacking::Private,
        }
    }

    /// This memory, with a backing that other programs can map.
    #[must_use]
    pub fn shareable(mut self) -> Self {
        if self.backing == MemoryBacking::Private {
            self.backing = MemoryBacking::Shared;
        }
        self
    }

    /// Whether the memory comes from the host's free memory, and not from huge pages that the host has reserved.
    pub(super) fn takes_free_memory(&self) -> bool {
        !matches!(self.backing, MemoryBacking::HugePages(_))
    }

    /// Opens the file to map, which is as long as the memory and all zero; `None` for private memory.
    ///
    /// # Errors
    /// If the host doesn't have the memory, or the file can't be used.
    pub(super) fn open(&self) -> Result<Option<File>, MachineError> {
        let file = match &self.backing {
            MemoryBacking::Private => return Ok(None),
            MemoryBacking::Shared => memory_file(MemfdFlags::CLOEXEC, self.bytes),
            MemoryBacking::HugePages(pages) => {
                pages.check(self.bytes)?;
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | pages.flag();
                memory_file(flags, self.bytes)
            }
            MemoryBacking::File(path) => return open_file(path, self.bytes).map(Some),
        };
        file.map(Some).map_err(MachineError::MemoryFile)
    }
}

fn memory_file(flags: MemfdFlags, bytes: u64) -> io::Result<File> {
    let file = memfd_create("kvmprof-guest", flags)?;
    ftruncate(&file, bytes)?;
    Ok(file.into())
}

/// Opens or makes the file at `path`, empties it and gives it this length. The file is locked (flock(2)) as long as it is open, so
/// that two guests can't use it.
fn open_file(path: &Path, bytes: u64) -> Result<File, MachineError> {
    let failed = |source| MachineError::BackingFile {
        path: path.to_owned(),
        source,
    };
    let refused = |why: String| MachineError::BadBackingFile {
        path: path.to_owned(),
        why,
    };
    let (folder, name) = OutputFolder::of(path).map_err(failed)?;
    // An open of a pipe without its other end would wait. A link may lead to a file of another user's choice.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
    let file = File::from(folder.open(&name, flags).map_err(failed)?);
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file".to_owned()));
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => refused("another guest has it".to_owned()),
        error => failed(error.into()),
    })?;
    if metadata.len() != 0 && metadata.len() != bytes {
        return Err(refused(format!(
            "it has {} bytes, and would be overwritten: name an empty file, one of {bytes} bytes, or none that exists",
            metadata.len()
        )));
    }
    let place = rustix::fs::fstatfs(&file).map_err(|error| failed(error.into()))?;
    let page = metadata.blksize();
    if place.f_type == HUGETLBFS && !bytes.is_multiple_of(page) {
        return Err(refused(format!(
            "its pages have {page} bytes, of which guest memory has to be a multiple"
        )));
    }
    // This removes the old contents.
    ftruncate(&file, 0).map_err(|error| failed(error.into()))?;
    ftruncate(&file, bytes).map_err(|error| failed(error.into()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_emptied_and_locked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        let bytes = 1 << 20;
        let file = open_file(&path, bytes).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes);
        let error = open_file(&path, bytes).unwrap_err();
        assert!(error.to_string().contains("another guest"), "{error}");
        drop(file);
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        drop(open_file(&path, bytes).unwrap());
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn files_with_content_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        fs::write(&path, "dear").unwrap();
        let error = open_file(&path, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("4 bytes"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"dear");
        let (link, empty) = (folder.path().join("link"), folder.path().join("empty"));
        fs::write(&empty, "").unwrap();
        std::os::unix::fs::symlink(&empty, &link).unwrap();
        assert!(open_file(&link, 1 << 20).is_err());
        assert_eq!(fs::metadata(&empty).unwrap().len(), 0);
        for path in [folder.path(), Path::new("/dev/null")] {
            assert!(open_file(path, 1 << 20).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn too_few_huge_pages_are_an_error_with_advice() {
        let pages = HugePages::TwoMebibytes;
        let error = pages.check((2 << 20) + 4096).unwrap_err();
        assert!(error.to_string().contains("multiple"), "{error}");
        let error = pages.check(1 << 50).unwrap_err().to_string();
        let host_has_such = pages.available().is_some();
        assert!(!host_has_such || error.contains("nr_hugepages"), "{error}");
    }
}
