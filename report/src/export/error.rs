//! The errors of exports.

use std::io;

use kvmprof_recording::file::FileError;

use crate::budget::{TooMuch, too_much};

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The recording can't be read.
    #[error(transparent)]
    Recording(#[from] FileError),
    /// The result can't be written.
    #[error("Cannot write the result")]
    Output(#[source] io::Error),
    /// The format has several files, which can't be written as one stream.
    #[error("This format needs a file: name it with --output")]
    NeedsFile,
    /// The format has addresses, of which its reader makes stacks.
    #[error("perf makes stacks of the addresses that were recorded: leave --transform out")]
    Transformed,
    /// The format's numbers have too few bits for this recording.
    #[error(
        "The recording has more different {0} than the format can number: choose processes with --pid"
    )]
    TooMany(&'static str),
    /// The result doesn't fit into the source's budget.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
}

impl From<io::Error> for ExportError {
    fn from(error: io::Error) -> Self {
        too_much(&error).map_or(Self::Output(error), Self::TooMuch)
    }
}
