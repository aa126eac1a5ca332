//! The errors of recordings.

use std::io;
use std::path::{Path, PathBuf};

use super::block::VERSION;

/// Why reading a recording that arrives in pieces has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It doesn't begin like a recording.
    #[error("What the guest's recorder sends is no recording")]
    NotARecording,
    /// It is of another version of the format.
    #[error(
        "The recorder's format is version {0}, but this program reads version {VERSION}: use the program that runs the guest"
    )]
    UnknownVersion(u32),
    /// It was cut off or changed. All before that is valid, and nothing after it can be found.
    #[error("The recorder's stream is damaged at byte {offset}: {what}")]
    CutOff {
        /// Where the last whole block ends, in bytes from the recording's start.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// A block is complete and yet invalid.
    #[error("The recorder's stream is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where the block begins, in bytes from the recording's start.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

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
        "{path} has format {version}, and this kvmprof reads format {VERSION} only: use the one that made it",
        path = .path.display()
    )]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
    /// It was cut off before the block with its properties.
    #[error("{path} was cut off before its first sample", path = .0.display())]
    Empty(PathBuf),
    /// A block is complete and yet invalid.
    #[error("The block at byte {offset} of {path} is damaged: {what}", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the block begins, in bytes from the file's start.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl FileError {
    /// The error that the file at `path` can't be read.
    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    /// What was wrong with the recording in the file at `path`.
    pub(super) fn at(path: &Path, error: ReadError) -> Self {
        let path = path.to_owned();
        match error {
            ReadError::NotARecording => Self::NotARecording(path),
            ReadError::UnknownVersion(version) => Self::UnknownVersion { path, version },
            ReadError::CutOff { offset, what } | ReadError::Damaged { offset, what } => {
                Self::Damaged { path, offset, what }
            }
        }
    }
}
