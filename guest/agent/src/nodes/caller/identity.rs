//! Who calls, and when.

use std::fs::File;
use std::io::Read;

use rustix::time::{ClockId, clock_gettime};

/// Bytes of `/proc/PID/status`, at most.
const STATUS_MAX: u64 = 64 << 10;

/// The process of a thread, as this process's `/proc` numbers it.
pub(super) fn process_of(thread: u32) -> Option<i32> {
    // A caller in another pid namespace has no number here.
    if thread == 0 {
        return None;
    }
    status_of(&thread.to_string(), "Tgid:")?.trim().parse().ok()
}

/// What `/proc/PROCESS/status` says behind `name`.
pub(super) fn status_of(process: &str, name: &str) -> Option<String> {
    let file = File::open(format!("/proc/{process}/status")).ok()?;
    let mut text = Vec::new();
    file.take(STATUS_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.to_owned())
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanoseconds
}
