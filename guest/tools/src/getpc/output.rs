//! Where the stream goes.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Why there is nowhere to write to.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Standard output is a terminal.
    #[error(
        "Standard output is a terminal, and the stream isn't text: write to a file with -o FILE, or pipe it into pcstat"
    )]
    Terminal,
    /// The file can't be made.
    #[error("Cannot write to {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Opens the file at `path`, or standard output.
///
/// # Errors
/// When that is a terminal, or the file can't be made.
pub fn open_output(path: Option<&Path>) -> Result<Box<dyn Write>, OutputError> {
    match path {
        Some(path) => match File::create(path) {
            Ok(file) => Ok(Box::new(BufWriter::new(file))),
            Err(source) => Err(OutputError::File {
                path: path.to_path_buf(),
                source,
            }),
        },
        None if io::stdout().is_terminal() => Err(OutputError::Terminal),
        None => Ok(Box::new(BufWriter::new(io::stdout()))),
    }
}
