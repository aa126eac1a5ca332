//! The forced end: a second request to end ends the process, whatever its other threads do. Where the first one has no effect yet, it is enough.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::termination::{SIGNALS, SignalBytes};
use kvmprof_machine::console::restore_terminal;
use kvmprof_machine::lock::lock;
use kvmprof_profiling::signals::take_signals_here;

/// Maximum time that a regular end may still take after the second request.
const GRACE: Duration = Duration::from_millis(500);
/// The process's exit status after a forced end: that of an error.
const STATUS: i32 = 1;

/// Whether the thread that forces the end runs.
static IS_STARTED: Mutex<bool> = Mutex::new(false);
/// Number of requests that turned out not to ask for the program's end.
static FORGIVEN: AtomicUsize = AtomicUsize::new(0);

/// Whether no thread handles requests yet.
static IS_UNHEARD: AtomicBool = AtomicBool::new(false);

/// Returns whether no thread handles requests to end yet, so that one is enough to end the process. For a start that has nothing to bring to an end
/// in order.
pub fn set_unheard(is_unheard: bool) {
    IS_UNHEARD.store(is_unheard, Ordering::SeqCst);
}

/// Starts to count requests to end, until the process ends. Does nothing if the count has been started already.
///
/// # Errors
/// The host can't make a socket or start a thread.
pub(super) fn start() -> io::Result<()> {
    let mut is_started = lock(&IS_STARTED);
    if *is_started {
        return Ok(());
    }
    let mut requests = SignalBytes::of(&SIGNALS)?;
    let builder = thread::Builder::new().name("forced end".into());
    builder.spawn(move || {
        enter_sandbox();
        await_second(&mut requests.stream);
    })?;
    *is_started = true;
    Ok(())
}

/// Contains a thread that ends the process if nothing else does, if threads are contained. Such a thread starts before files are
/// restricted, and needs no files.
pub fn enter_sandbox() {
    kvmprof_sandbox::enter_without_paths(kvmprof_sandbox::Thread::End);
}

/// Subtracts one request, which turned out not to ask for the program's end.
pub(super) fn forgive_one() {
    FORGIVEN.fetch_add(1, Ordering::SeqCst);
}

/// Ends the process with `status`, whatever its other threads do or hold. Restores the terminal's settings. Writes `message` to
/// standard error, if that doesn't wait.
pub fn end_at_once(status: i32, message: &str) -> ! {
    restore_terminal();
    kvmprof_sandbox::stderr::write_at_once(message.as_bytes());
    // SAFETY: it doesn't return, and what other threads are in the middle of is no matter any more.
    unsafe { libc::_exit(status) }
}

/// Waits for the second request that hasn't been subtracted. Each request is a byte.
fn await_second(requests: &mut UnixStream) {
    // A handler runs on any thread that takes the signal: not only on the event thread, which may be stuck.
    if let Err(error) = take_signals_here() {
        log::warn!("A second signal ends nothing by force: {error}");
        return;
    }
    let mut made = 0_usize;
    let are_enough = |made: usize| {
        let enough = if IS_UNHEARD.load(Ordering::SeqCst) {
            1
        } else {
            2
        };
        made.saturating_sub(FORGIVEN.load(Ordering::SeqCst)) >= enough
    };
    let mut request = [0; 1];
    while requests.read_exact(&mut request).is_ok() {
        made += 1;
        if !are_enough(made) {
            continue;
        }
        made += more_within(requests, GRACE);
        // The event thread may have seen to one of them meanwhile, or looks for them now.
        if are_enough(made) {
            let message = match IS_UNHEARD.load(Ordering::SeqCst) {
                true => "kvmprof: ended by a signal before it was attached to the guest\n",
                false => {
                    "kvmprof: ended by force, because a second signal came before an end in order\n"
                }
            };
            end_at_once(STATUS, message);
        }
    }
}

/// The number of further requests that come before `time` has passed.
fn more_within(requests: &mut UnixStream, time: Duration) -> usize {
    let deadline = Instant::now() + time;
    let mut more = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Without a limit there would be no end by force.
        if left.is_zero() || requests.set_read_timeout(Some(left)).is_err() {
            // A socket that waits with a limit gives up before the next request.
            let _ = requests.set_read_timeout(None);
            return more;
        }
        // Otherwise the time is over.
        if let Ok(count) = requests.read(&mut [0; 16]) {
            more += count;
        }
    }
}
