//! Receives the machine's output: byte streams, all of them bounded.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::LabError;

const CHUNK: usize = 64 << 10;
/// Number of bytes of the console to keep: enough for a panic's message and the stack after it.
const TAIL_BYTES: usize = 16 << 10;
const TAIL_LINES: usize = 100;
/// Maximum number of bytes of the control port, which carries two short lines.
const CONTROL_MAX: u64 = 4096;

/// A stream that counts the bytes that are read.
pub(crate) struct CountingStream<'a, R> {
    stream: R,
    bytes: &'a AtomicU64,
}

impl<'a, R> CountingStream<'a, R> {
    /// Makes a stream that adds the bytes read from `stream` to `bytes`.
    pub(crate) fn new(stream: R, bytes: &'a AtomicU64) -> Self {
        Self { stream, bytes }
    }
}

impl<R: Read> Read for CountingStream<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.stream.read(buffer) {
            Err(error) if is_closed(&error) => 0,
            other => other?,
        };
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Whether the other end is closed: that of a terminal, or that of a socket before all was read from it, as when a machine goes down.
fn is_closed(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::IO | Errno::CONNRESET)
    )
}

/// Reads a stream to its end into memory.
pub(crate) fn capture(
    stream: impl Read,
    limit: u64,
    what: &'static str,
) -> Result<Vec<u8>, LabError> {
    let mut bytes = Vec::new();
    let mut bounded = stream.take(limit.saturating_add(1));
    bounded
        .read_to_end(&mut bytes)
        .map_err(LabError::file("read", what))?;
    if bytes.len() as u64 > limit {
        return Err(LabError::TooMuch { what, limit });
    }
    Ok(bytes)
}

/// Passes a stream on as it arrives, until its end.
pub(crate) fn forward(
    mut stream: impl Read,
    mut sink: impl Write,
    what: &'static str,
) -> Result<(), LabError> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(LabError::file("read", what)(error)),
        };
        sink.write_all(&chunk[..count])
            .and_then(|()| sink.flush())
            .map_err(LabError::file("write", what))?;
    }
}

/// The last lines of a file, without characters on which a terminal would act. Empty if the file cannot be read.
pub fn last_lines(file: &Path) -> String {
    File::open(file).map(tail).unwrap_or_default()
}

/// Reads a stream to its end and keeps its last lines, without characters on which a terminal would act.
pub(crate) fn tail(mut stream: impl Read) -> String {
    let mut kept = VecDeque::with_capacity(TAIL_BYTES);
    let mut chunk = vec![0; CHUNK];
    // A read error ends the console, too.
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        kept.extend(&chunk[..count]);
        let surplus = kept.len().saturating_sub(TAIL_BYTES);
        kept.drain(..surplus);
    }
    let text = String::from_utf8_lossy(kept.make_contiguous()).into_owned();
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            line.chars()
                .filter(|c| !c.is_control() || *c == '\t')
                .collect()
        })
        .collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// The progress that the first process reported on the control port.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Whether the machine was up and the command about to start.
    pub ready: bool,
    /// The command's exit status; `None` while it runs.
    pub status: Option<u8>,
}

/// Reads the control port to its end, and calls `on_ready` as soon as the machine is up.
pub(crate) fn progress(
    stream: impl Read,
    mut on_ready: impl FnMut(),
) -> Result<Progress, LabError> {
    let what = "control messages";
    let mut progress = Progress::default();
    let mut bounded = BufReader::new(stream.take(CONTROL_MAX));
    let mut line = String::new();
    while bounded
        .read_line(&mut line)
        .map_err(LabError::file("read", what))?
        > 0
    {
        match line.trim_end() {
            "ready" if !progress.ready => {
                progress.ready = true;
                on_ready();
            }
            said => {
                let status = said.strip_prefix("exit ").and_then(|n| n.parse().ok());
                progress.status = progress.status.or(status);
            }
        }
        line.clear();
    }
    if bounded.into_inner().limit() == 0 {
        let limit = CONTROL_MAX;
        return Err(LabError::TooMuch { what, limit });
    }
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn capture_takes_exactly_its_limit() {
        assert_eq!(capture(&b"12345"[..], 5, "x").unwrap(), b"12345");
        let error = capture(&b"123456"[..], 5, "x").unwrap_err();
        assert!(matches!(error, LabError::TooMuch { limit: 5, .. }));
    }

    #[test]
    fn forward_changes_nothing() {
        let bytes: Vec<u8> = (0..=255).cycle().take(3 * CHUNK + 7).collect();
        let mut sink = Vec::new();
        forward(bytes.as_slice(), &mut sink, "x").unwrap();
        assert_eq!(sink, bytes);
    }

    #[test]
    fn tail_keeps_only_the_end() {
        let console = "line\r\n".repeat(100_000) + "last\x1b[2J line";
        let tail = tail(console.as_bytes());
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("line\nlast[2J line"), "{tail}");
    }

    #[test]
    fn a_machine_may_end_before_it_has_read_all_input() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"taken\n").unwrap();
        drop(theirs);
        let bytes = AtomicU64::new(0);
        let said = progress(CountingStream::new(ours, &bytes), || {}).unwrap();
        assert_eq!(said, Progress::default());
    }

    #[test]
    fn progress_ignores_unknown_lines() {
        let mut ups = 0;
        let said = progress(&b"ready\nnoise\nready\nexit 7\nexit 8\n"[..], || ups += 1).unwrap();
        assert_eq!((said.ready, said.status, ups), (true, Some(7), 1));
        let said = progress(&b"exit 300\n"[..], || ups += 1).unwrap();
        assert_eq!((said, ups), (Progress::default(), 1));
        assert!(progress(&[b'x'; 5000][..], || {}).is_err());
        assert!(progress(&b"\xff\n"[..], || {}).is_err());
    }
}
