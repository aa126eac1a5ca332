//! Errors of disks.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a disk can't be used. Messages say what to do, where something can be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiskError {
    /// More disks than a machine may have.
    #[error("{asked} disks are too many: there may be {}", super::DISKS_MAX)]
    TooMany {
        /// The requested number.
        asked: usize,
    },
    /// The image can't be opened or read.
    #[error("Cannot open the disk {}", path.display())]
    Open {
        /// The image.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// The path leads to a folder, a pipe or the like.
    #[error("The disk {} is neither a regular file nor a block device", .0.display())]
    NotAnImage(PathBuf),
    /// The image isn't to be written.
    #[error("The disk {} is write-protected: add ,readonly, or allow writing it", .0.display())]
    WriteProtected(PathBuf),
    /// The image is in use by another program, or by another disk.
    #[error(
        "The disk {} is in use: a disk can be shared only if all who use it do so with ,readonly",
        .0.display()
    )]
    InUse(PathBuf),
    /// The image has no bytes.
    #[error("The disk {} is empty", .0.display())]
    Empty(PathBuf),
    /// The image begins as a qcow2 image, and the options don't name a format.
    #[error(
        "The disk {} looks like a qcow2 image: add ,format=qcow2 to use it as one, or ,format=raw if the guest is to see its bytes",
        .0.display()
    )]
    LooksLikeQcow2(PathBuf),
    /// The options say that the image is qcow2, but it isn't.
    #[error("The disk {} is not a qcow2 image: leave out ,format=qcow2, or name another file", .0.display())]
    NotQcow2(PathBuf),
    /// The image's header or tables are truncated or damaged.
    #[error("The qcow2 image {} is truncated or damaged: {what}", path.display())]
    Damaged {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The image needs a feature that isn't supported.
    #[error("The qcow2 image {} can't be used: {what}", path.display())]
    Unsupported {
        /// The image.
        path: PathBuf,
        /// The feature that the image needs.
        what: &'static str,
    },
    /// The qcow2 image can't be opened for another reason.
    #[error("Cannot open the qcow2 image {}", path.display())]
    Qcow2 {
        /// The image.
        path: PathBuf,
        /// The error of imago or of the host.
        source: io::Error,
    },
    /// A backing file is outside the image's folder.
    #[error(
        "The qcow2 image {} has the backing file {}, which isn't in the same folder: add ,backing=anywhere if you trust the image",
        path.display(), backing.display()
    )]
    BackingElsewhere {
        /// The disk's image.
        path: PathBuf,
        /// The backing file.
        backing: PathBuf,
    },
    /// The chain of backing files is too long, or endless.
    #[error("The qcow2 image {} has too long a chain of backing files: at most {most} are possible", path.display())]
    BackingTooDeep {
        /// The disk's image.
        path: PathBuf,
        /// Maximum number of backing files.
        most: usize,
    },
}

impl DiskError {
    /// For `map_err`: the error of an image at `path` that can't be opened or read.
    pub(super) fn open(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Open {
            path: path.to_owned(),
            source,
        }
    }
}
