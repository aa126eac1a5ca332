//! Output to a pipe that the reader may close, as head(1) does.

use std::io::{self, ErrorKind, Write};

/// Marks an error of an output pipe, to distinguish it from the end of a connection.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
struct ReaderGone;

/// Writes to standard output, or to a file that may be a pipe. After the reader has closed it, writes fail with an
/// error that [`is_reader_gone`] recognizes.
#[derive(Debug)]
pub struct PipeWriter<W>(pub W);

impl<W: Write> Write for PipeWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

fn marked(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, ReaderGone),
        _ => error,
    }
}

/// Whether `error` comes from a closed [`PipeWriter`]. The command then has nothing more to do, and hasn't failed.
pub fn is_reader_gone(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        let inner = cause.and_then(io::Error::get_ref);
        inner.is_some_and(|inner| inner.is::<ReaderGone>())
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_closed_pipe_differs_from_other_errors() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut output = io::BufWriter::new(PipeWriter(writer));
        output.write_all(b"lines").unwrap();
        let error = output.flush().context("Cannot write").unwrap_err();
        assert!(is_reader_gone(&error), "{error:?}");

        let other = anyhow::Error::from(io::Error::from(ErrorKind::BrokenPipe));
        assert!(!is_reader_gone(&other));
        let mut full = PipeWriter(std::fs::File::create("/dev/full").unwrap());
        let error = full.write_all(b"lines").unwrap_err();
        assert!(!is_reader_gone(&error.into()));
    }
}
