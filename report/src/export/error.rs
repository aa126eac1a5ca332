//! The errors of exports.

use std::io;

use kvmprof_recording::file::FileError;

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The recording can't be read.
    #[error(transparent)]
    Recording(#[from] FileError),
    /// The result can't be written.
    #[error("Cannot write the result")]
    Output(#[from] io::Error),
    /// The format has several files.
    #[error("This format needs a file: name it with --output")]
    NeedsFile,
    /// The format's numbers have too few bits for this recording.
    #[error(
        "The recording has more different {0} than the format can number: choose processes with --pid"
    )]
    TooMany(&'static str),
}
