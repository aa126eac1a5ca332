//! An end that waits for nobody: a second request to end ends the process, whatever its other threads do.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::termination::{SIGNALS, SignalBytes, take_signals_here};
use crate::console::restore_terminal;

/// How long an end in order may still take after the second request.
const GRACE: Duration = Duration::from_millis(500);
/// The process's exit status then: that of an error.
const STATUS: i32 = 1;

/// The thread that sees to it. Dropped, it ends, and signals end nothing by force.
#[derive(Debug)]
pub(super) struct ForcedEnd {
    signals: SignalBytes,
    /// Requests that didn't ask for the program's end after all.
    forgiven: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl ForcedEnd {
    /// Counts requests to end from now on.
    ///
    /// # Errors
    /// When the host gives no socket or thread.
    pub fn new() -> io::Result<Self> {
        let signals = SignalBytes::of(&SIGNALS)?;
        let requests = signals.stream.try_clone()?;
        let forgiven = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&forgiven);
        let builder = thread::Builder::new().name("forced end".into());
        Ok(Self {
            signals,
            forgiven,
            thread: Some(builder.spawn(move || {
                kvmprof_sandbox::enter(kvmprof_sandbox::Thread::End);
                await_second(requests, &counted);
            })?),
        })
    }

    /// One of the requests didn't ask for the program's end after all: it counts no more.
    pub fn forgive_one(&self) {
        self.forgiven.fetch_add(1, Ordering::SeqCst);
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

/// Waits for the second request that wasn't forgiven. There is a byte for each.
fn await_second(mut requests: UnixStream, forgiven: &AtomicUsize) {
    // A handler runs on any thread that takes the signal: not only on the event thread, which may be stuck.
    if let Err(error) = take_signals_here() {
        log::warn!("A second signal ends nothing by force: {error}");
        return;
    }
    let mut made = 0_usize;
    let are_two = |made: usize| made.saturating_sub(forgiven.load(Ordering::SeqCst)) >= 2;
    let mut request = [0; 1];
    loop {
        if requests.read_exact(&mut request).is_err() {
            return;
        }
        made += 1;
        if !are_two(made) {
            continue;
        }
        match more_within(&mut requests, GRACE) {
            None => return,
            Some(more) => made += more,
        }
        // The event thread may have seen to one of them meanwhile.
        if are_two(made) {
            restore_terminal();
            eprintln!(
                "kvmprof: ended by force, because a second signal came before an end in order"
            );
            // SAFETY: it doesn't return, and what other threads are in the middle of is no matter any more.
            unsafe { libc::_exit(STATUS) };
        }
    }
}

/// How many further requests come before `time` has passed; `None` if the other end is closed before that.
fn more_within(requests: &mut UnixStream, time: Duration) -> Option<usize> {
    let deadline = Instant::now() + time;
    let mut more = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Without a limit there would be no end by force.
        if left.is_zero() || requests.set_read_timeout(Some(left)).is_err() {
            // A socket that waits with a limit gives up before the next request.
            let _ = requests.set_read_timeout(None);
            return Some(more);
        }
        // Otherwise the time is over.
        match requests.read(&mut [0; 16]) {
            Ok(0) => return None,
            Ok(count) => more += count,
            Err(_) => {}
        }
    }
}
