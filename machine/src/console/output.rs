//! Writes console output. vCPU threads write it, so the write must neither fail nor spin, and a
//! reader that has stopped reading must not keep the machine from ending.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvmprof_recording::file::open_in_place;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::text_watch::TextWatch;

/// Maximum number of bytes of one write: no more than a pipe that poll(2) reports as writable accepts at
/// once (`PIPE_BUF`, pipe(7)), so that the write doesn't block.
const CHUNK: usize = 512;
/// How long to wait for a stalled reader before checking whether the machine ends.
const STALL_CHECK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The output end of a console.
#[derive(Debug)]
pub struct ConsoleOutput {
    /// None: output is thrown away.
    target: Option<File>,
    closing: Arc<AtomicBool>,
    /// Bytes that may still be written.
    room: u64,
    /// Bytes for which there was no room.
    dropped: u64,
    /// Sees all of the output, including the part that isn't written.
    watch: Option<TextWatch>,
}

impl ConsoleOutput {
    fn new(target: Option<File>) -> Self {
        Self {
            target,
            closing: Arc::default(),
            room: u64::MAX,
            dropped: 0,
            watch: None,
        }
    }

    /// An output to standard output.
    ///
    /// # Errors
    /// If its descriptor can't be duplicated.
    pub fn stdout() -> io::Result<Self> {
        let duplicate = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::new(Some(duplicate.into())))
    }

    /// An output to a file. The file is made with mode 0600 if there is none, and written from its start.
    ///
    /// # Errors
    /// As [`open_in_place`].
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(Self::new(Some(open_in_place(path)?)))
    }

    /// Another descriptor of the output's file, if it is a regular one.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(super) fn regular_file(&self) -> io::Result<Option<File>> {
        match &self.target {
            Some(file) if file.metadata()?.is_file() => file.try_clone().map(Some),
            _ => Ok(None),
        }
    }

    /// This output, limited to `limit` bytes. Later bytes are thrown away and counted.
    #[must_use]
    pub fn limited(mut self, limit: Option<u64>) -> Self {
        self.room = limit.unwrap_or(u64::MAX);
        self
    }

    /// This output, with `watch` seeing it.
    #[must_use]
    pub fn watched(mut self, watch: Option<TextWatch>) -> Self {
        self.watch = watch;
        self
    }

    /// An output that throws all bytes away.
    #[must_use]
    pub fn discard() -> Self {
        Self::new(None)
    }

    /// A pipe.
    #[cfg(test)]
    pub(super) fn pipe(writer: io::PipeWriter) -> Self {
        let writer: std::os::fd::OwnedFd = writer.into();
        Self::new(Some(writer.into()))
    }

    /// Set this to have output thrown away from now on, also output that waits for a stalled
    /// reader right now.
    pub(super) fn closing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.closing)
    }

    /// Cuts off the bytes beyond the limit.
    fn within_limit<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let room = usize::try_from(self.room).unwrap_or(usize::MAX);
        let (bytes, rest) = bytes.split_at(bytes.len().min(room));
        self.room -= bytes.len() as u64;
        if !rest.is_empty() && self.dropped == 0 && self.target.is_some() {
            log::warn!("The console's output has reached its limit: the rest is thrown away");
        }
        self.dropped = self.dropped.saturating_add(rest.len() as u64);
        bytes
    }

    /// Writes `bytes` as far as the limit allows. Waits for a stalled reader. If the reader is gone, throws all further output
    /// away.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.write_to_target(bytes);
        // This comes after the write, so that the text is there for those who wait for it.
        if let Some(watch) = &mut self.watch {
            watch.watch(bytes);
        }
    }

    fn write_to_target(&mut self, bytes: &[u8]) {
        let mut bytes = self.within_limit(bytes);
        while !bytes.is_empty() && !self.closing.load(Ordering::Relaxed) {
            let Some(target) = &mut self.target else {
                return;
            };
            if !wait_until_writable(target) {
                continue;
            }
            match target.write(&bytes[..bytes.len().min(CHUNK)]) {
                Ok(written) if written > 0 => bytes = &bytes[written..],
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                // The reader is gone, or the disk is full. The guest continues without output.
                result => {
                    log::warn!("Console output ends here: {result:?}");
                    self.target = None;
                }
            }
        }
    }
}

impl Drop for ConsoleOutput {
    fn drop(&mut self) {
        if self.dropped > 0 && self.target.is_some() {
            log::warn!(
                "{} bytes of the console's output were beyond its limit",
                self.dropped
            );
        }
    }
}

/// Waits for a while. True if a write would not block, or would fail.
fn wait_until_writable(target: &File) -> bool {
    let mut polled = [PollFd::new(target, PollFlags::OUT)];
    poll(&mut polled, Some(&STALL_CHECK)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn pipe() -> (io::PipeReader, ConsoleOutput) {
        let (reader, writer) = io::pipe().unwrap();
        (reader, ConsoleOutput::pipe(writer))
    }

    #[test]
    fn all_bytes_arrive() {
        let (mut reader, mut output) = pipe();
        let sent = vec![b'a'; 3 * CHUNK + 7];
        output.write(&sent);
        drop(output);
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert_eq!(received, sent);
    }

    #[test]
    fn what_is_beyond_the_limit_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let mut output = ConsoleOutput::file(&path).unwrap().limited(Some(7));
        for bytes in [&b"hello"[..], b"", b"world", b"!"] {
            output.write(bytes);
        }
        assert_eq!(output.dropped, 4);
        assert_eq!(std::fs::read(&path).unwrap(), b"hellowo");
    }

    #[test]
    fn a_closed_reader_is_not_an_error() {
        let (reader, mut output) = pipe();
        drop(reader);
        output.write(b"hello");
        assert!(output.target.is_none());
        output.write(b"hello");
    }

    #[test]
    fn a_stalled_reader_does_not_keep_the_machine_from_ending() {
        let (_reader, mut output) = pipe();
        let closing = output.closing();
        let writer = std::thread::spawn(move || output.write(&vec![0; 1 << 20]));
        closing.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    }
}
