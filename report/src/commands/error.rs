//! What keeps a command from its result.

use std::io;
use std::path::PathBuf;

use crate::file::FileError;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The recording can't be read.
    #[error(transparent)]
    Recording(#[from] FileError),
    /// The result can't be written.
    #[error("Cannot write {path}", path = .path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The result can't be written to standard output.
    #[error("Cannot write the result")]
    Output(#[source] io::Error),
    /// The format has no room for the recording.
    #[error(transparent)]
    Export(crate::export::ExportError),
    /// The flame graph can't be drawn.
    #[error("Cannot draw the flame graph: {0}")]
    Drawing(String),
    /// The files that names come from can't be used.
    #[error(transparent)]
    Symbols(#[from] crate::symbolize::SymbolError),
    /// No sample has the function that was asked for.
    #[error(
        "No sample has a function called {0} on its stack: kvmprof report --sort total lists them"
    )]
    NoSuchFunction(String),
    /// There is nothing to draw.
    #[error(
        "There are no samples to draw: {0} has none, or none of the processes and the time asked for"
    )]
    NoSamples(PathBuf),
}
