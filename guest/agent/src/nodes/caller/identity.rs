//! The identity of a caller, and the time of the call.

use std::fs::File;
use std::io::Read;

use rustix::time::{ClockId, clock_gettime};

/// Maximum number of bytes of `/proc/PID/status` that are read.
const STATUS_MAX: u64 = 64 << 10;

/// The process of a thread, by its id in this process's `/proc`.
pub(super) fn process_of(thread: u32) -> Option<i32> {
    // A caller in a pid namespace that this one doesn't contain has no id here.
    if thread == 0 {
        return None;
    }
    status_of(&thread.to_string(), "Tgid:")?.trim().parse().ok()
}

/// The text after `name` in `/proc/PROCESS/status`.
pub(super) fn status_of(process: &str, name: &str) -> Option<String> {
    let file = File::open(format!("/proc/{process}/status")).ok()?;
    let mut text = Vec::new();
    file.take(STATUS_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.to_owned())
}

/// The time of CLOCK_MONOTONIC, in ns.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanoseconds
}
