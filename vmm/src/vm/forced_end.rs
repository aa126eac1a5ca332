//! An end that waits for nobody: a second request to end ends the process, whatever its other threads do.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::termination::{SignalBytes, take_signals_here};
use crate::console::restore_terminal;

/// How long an end in order may still take after the second request.
const GRACE: Duration = Duration::from_millis(500);
/// The process's exit status then: that of an error.
const STATUS: i32 = 1;

/// The thread that sees to it. Dropped, it ends, and signals end nothing by force.
#[derive(Debug)]
pub(super) struct ForcedEnd {
    signals: SignalBytes,
    thread: Option<JoinHandle<()>>,
}

impl ForcedEnd {
    /// Counts requests to end from now on.
    ///
    /// # Errors
    /// When the host gives no socket or thread.
    pub fn new() -> io::Result<Self> {
        let signals = SignalBytes::new()?;
        let requests = signals.stream.try_clone()?;
        let builder = thread::Builder::new().name("forced end".into());
        Ok(Self {
            signals,
            thread: Some(builder.spawn(move || await_second(requests))?),
        })
    }
}

impl Drop for ForcedEnd {
    fn drop(&mut self) {
        self.signals.stop();
        // That can only fail if it is over already.
        let _ = self.signals.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// Waits for the second request. There is a byte for each.
fn await_second(mut requests: UnixStream) {
    // A handler runs on any thread that takes the signal: not only on the event thread, which may be stuck.
    if let Err(error) = take_signals_here() {
        log::warn!("A second signal ends nothing by force: {error}");
        return;
    }
    let mut request = [0; 1];
    for _ in 0..2 {
        if requests.read_exact(&mut request).is_err() {
            return;
        }
    }
    if !is_dropped_within(requests, GRACE) {
        restore_terminal();
        eprintln!("kvmprof: ended by force, because a second signal came before an end in order");
        // SAFETY: it doesn't return, and what other threads are in the middle of is no matter any more.
        unsafe { libc::_exit(STATUS) };
    }
}

/// Whether the other end is closed before `time` has passed.
fn is_dropped_within(mut requests: UnixStream, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Without a limit there would be no end by force.
        if left.is_zero() || requests.set_read_timeout(Some(left)).is_err() {
            return false;
        }
        // Otherwise there are further requests, or the time is over.
        if matches!(requests.read(&mut [0; 16]), Ok(0)) {
            return true;
        }
    }
}
