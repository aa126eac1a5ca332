//! What can be wrong with the spool.

use std::io;
use std::path::PathBuf;

/// What is wrong with the spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The folder, or a file in it, can't be used.
    #[error("Cannot use the spool {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others can read or change it.
    #[error("The spool {} isn't a folder of your own with mode 0700", .0.display())]
    NotOwn(PathBuf),
    /// Another collector uses it.
    #[error("Another kvmprof-collect uses the spool {}", .0.display())]
    InUse(PathBuf),
    /// A file can't be read.
    #[error("Cannot read {}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
}

impl SpoolError {
    /// Whether it is for want of room, which may come again.
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
