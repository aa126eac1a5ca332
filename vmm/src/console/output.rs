//! Where console output goes. It is written on vCPU threads, so it must neither fail nor spin,
//! and a reader who has stopped reading must not keep the machine from ending.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// At most as many bytes in one write: no more than a pipe that poll(2) calls writable takes at
/// once (`PIPE_BUF`, pipe(7)), so that the write doesn't block.
const CHUNK: usize = 512;
/// How long to wait for a stalled reader before looking whether the machine ends, ms.
const STALL_CHECK_MS: libc::c_int = 100;

/// The output end of a console.
#[derive(Debug)]
pub struct ConsoleOutput {
    /// None: output is thrown away.
    target: Option<File>,
    closing: Arc<AtomicBool>,
}

impl ConsoleOutput {
    fn new(target: Option<File>) -> Self {
        Self {
            target,
            closing: Arc::default(),
        }
    }

    /// Standard output.
    ///
    /// # Errors
    /// If its descriptor can't be duplicated.
    pub fn stdout() -> io::Result<Self> {
        let duplicate = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::new(Some(duplicate.into())))
    }

    /// A file, which is made if there is none, and written to from its begin.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn file(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        Ok(Self::new(Some(file)))
    }

    /// Nowhere.
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

    /// Writes all of `bytes`. Waits for a stalled reader; gives up for good when there is none
    /// any more.
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
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
                // The reader is gone, or the disk is full: the guest goes on without.
                result => {
                    log::warn!("Console output ends here: {result:?}");
                    self.target = None;
                }
            }
        }
    }
}

/// Waits for a while. True if a write would not block, or would fail.
fn wait_until_writable(target: &File) -> bool {
    let mut poll = libc::pollfd {
        fd: target.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: `poll` is one valid pollfd, and lives until poll(2) returns.
    let ready = unsafe { libc::poll(&raw mut poll, 1, STALL_CHECK_MS) };
    ready > 0
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
    fn a_reader_that_is_gone_is_no_error() {
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
