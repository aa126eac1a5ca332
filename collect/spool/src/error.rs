//! Errors of the spool.

use std::io;
use std::path::PathBuf;

/// An error of the spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The folder, or a file in it, can't be used.
    #[error("Cannot use the spool {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read or change the folder, or it isn't this user's.
    #[error("The spool {} isn't a folder of your own with mode 0700", .0.display())]
    NotOwn(PathBuf),
    /// Another collector uses it.
    #[error("Another kvmprof-collect uses the spool {}", .0.display())]
    InUse(PathBuf),
    /// A file can't be read, or is damaged.
    #[error("Cannot read {}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl SpoolError {
    /// Whether a file was read and is invalid.
    pub(super) fn is_damage(&self) -> bool {
        let Self::Damaged { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        )
    }

    /// Whether the disk or the quota is full, in which case it may succeed later.
    pub(super) fn is_full(&self) -> bool {
        let Self::Folder { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}
