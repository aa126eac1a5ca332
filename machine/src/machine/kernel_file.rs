//! The files that a machine starts with: which they are, and how they are opened and read.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::elf::ELFMAG;

use super::image::Image;
use crate::error::MachineError;
use crate::memory::populate;
use crate::no_wait::open_without_waiting;

/// The source of the kernel.
#[derive(Clone, Debug)]
pub enum KernelSource {
    /// A bzImage or ELF file.
    Path(PathBuf),
    /// One that was read already.
    Image(Arc<Image>),
    /// An image built into the program.
    Embedded(&'static [u8]),
}

impl KernelSource {
    /// The kernel's name in messages and reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Image(image) => image.name().to_owned(),
            Self::Embedded(_) => "built into the program".to_owned(),
        }
    }
}

/// A kernel that is open.
#[derive(Debug)]
pub enum KernelFile {
    /// Its path, the file, which hasn't been read yet, and its size in bytes.
    Open(PathBuf, File, u64),
    /// An image built into the program.
    Embedded(&'static [u8]),
    /// One that was read already.
    Image(Arc<Image>),
}

impl KernelFile {
    /// Opens it.
    ///
    /// # Errors
    /// The path isn't that of a regular file, or the file can't be opened.
    pub fn open(source: &KernelSource) -> Result<Self, MachineError> {
        Ok(match source {
            KernelSource::Path(path) => {
                let (file, size) = open_file("kernel", path)?;
                Self::Open(path.clone(), file, size)
            }
            KernelSource::Embedded(bytes) => Self::Embedded(bytes),
            KernelSource::Image(image) => Self::Image(Arc::clone(image)),
        })
    }

    /// Whether it begins as an ELF file does.
    #[must_use]
    pub fn is_elf(&self) -> bool {
        let mut start = [0; ELFMAG.len()];
        match self {
            Self::Image(image) => image.bytes().starts_with(&ELFMAG),
            Self::Open(_, file, _) => file.read_exact_at(&mut start, 0).is_ok() && start == ELFMAG,
            Self::Embedded(bytes) => bytes.starts_with(&ELFMAG),
        }
    }

    /// Reads it, unless it was read already. `parse` makes an image of its name and its bytes.
    ///
    /// # Errors
    /// It can't be read, is too large, or `parse` refuses it.
    pub fn read<E: From<MachineError>>(
        self,
        parse: impl FnOnce(String, Arc<[u8]>) -> Result<Image, E>,
    ) -> Result<Arc<Image>, E> {
        let (name, bytes) = match self {
            Self::Open(path, file, size) => {
                let bytes = read_kernel(&path, &file, size)?;
                (path.display().to_string(), bytes)
            }
            Self::Embedded(bytes) => (KernelSource::Embedded(bytes).name(), Arc::from(bytes)),
            Self::Image(image) => return Ok(image),
        };
        parse(name, bytes).map(Arc::new)
    }
}

/// Maximum size of a kernel's file in bytes: far above any real one, and small enough to read into memory.
const IMAGE_MAX: u64 = 1 << 30;

fn read_kernel(path: &Path, file: &File, size: u64) -> Result<Arc<[u8]>, MachineError> {
    let failed = read_failed("kernel", path);
    if size > IMAGE_MAX {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    // Without a copy, and without zeros first: the guest's start waits for it.
    let mut bytes = Arc::new_uninit_slice(usize::try_from(size).unwrap_or(usize::MAX));
    let Some(buffer) = Arc::get_mut(&mut bytes) else {
        return Err(failed(io::ErrorKind::ResourceBusy.into()));
    };
    populate::buffer(buffer);
    read_exact(file, buffer).map_err(failed)?;
    // SAFETY: all of it was read.
    Ok(unsafe { bytes.assume_init() })
}

/// Reads all of `buffer` from `file`.
fn read_exact(file: &File, mut buffer: &mut [MaybeUninit<u8>]) -> io::Result<()> {
    while !buffer.is_empty() {
        buffer = match rustix::io::read(file, buffer) {
            Ok(([], _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, rest)) => rest,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(())
}

/// Opens a regular file. Also returns its size in bytes. `what` is "kernel" or "initrd".
///
/// # Errors
/// The path isn't that of a regular file, or the file can't be opened.
pub(super) fn open_file(what: &'static str, path: &Path) -> Result<(File, u64), MachineError> {
    // A device may do something when it is opened, and a socket can't be opened.
    let metadata = std::fs::metadata(path).map_err(read_failed(what, path))?;
    check_file(what, path, &metadata)?;
    open_checked(what, path)
}

/// The second part of [`open_file`]: the path may name something else since it was checked.
pub(super) fn open_checked(what: &'static str, path: &Path) -> Result<(File, u64), MachineError> {
    let opened = open_without_waiting(OpenOptions::new().read(true), path);
    let (file, metadata) = opened.map_err(read_failed(what, path))?;
    check_file(what, path, &metadata)?;
    Ok((file, metadata.len()))
}

/// Checks that this is the metadata of a regular file.
fn check_file(what: &'static str, path: &Path, metadata: &Metadata) -> Result<(), MachineError> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(MachineError::NotAFile {
        what,
        path: path.to_owned(),
    })
}

fn read_failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> MachineError {
    move |source| MachineError::ReadFile {
        what,
        path: path.to_owned(),
        source,
    }
}
