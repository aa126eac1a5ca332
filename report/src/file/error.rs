//! What can be wrong with a recording.

use std::io;
use std::path::PathBuf;

/// Why a recording can't be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file can't be read.
    #[error("Cannot read {path}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no recording.
    #[error("{path} is no recording of kvmprof: make one with kvmprof run --record", path = .0.display())]
    NotARecording(PathBuf),
    /// It was made by a newer program.
    #[error(
        "{path} has format {version}, and this kvmprof reads format {known} only: use the one that made it",
        path = .path.display(), known = super::block::VERSION
    )]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
    /// It was cut off before it said what it is about.
    #[error("{path} was cut off before its first sample", path = .0.display())]
    Empty(PathBuf),
    /// A block is whole and yet makes no sense.
    #[error("The block at byte {offset} of {path} is damaged: {what}", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the block begins, in bytes from the file's start.
        offset: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}
