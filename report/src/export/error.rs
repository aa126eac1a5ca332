//! What keeps a recording from being exported.

use std::io;

use kvmprof_recording::file::FileError;

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The recording can't be read.
    #[error(transparent)]
    Recording(#[from] FileError),
    /// The result can't be written.
    #[error("Cannot write the result")]
    Output(#[from] io::Error),
    /// The format is more than one stream.
    #[error("This format needs a file: name it with --output")]
    NeedsFile,
    /// The format numbers things with fewer bits than it takes.
    #[error(
        "The recording has more different {0} than the format can number: choose processes with --pid"
    )]
    TooMany(&'static str),
}
