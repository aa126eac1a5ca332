//! Standard error, for a process that ends.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stderr;

/// Writes `message` to standard error if that takes it at once; else nobody hears of it. `eprintln!` would wait: for who reads a full pipe,
/// or for the lock that another thread holds while it waits for that. A handler of signals may call it (signal-safety(7)), and all
/// filters allow what it does.
pub fn write_at_once(message: &[u8]) {
    let stderr = stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let is_polled = poll(&mut polled, Some(&Timespec::default())) == Ok(1);
    // A pipe that nobody can read any more has room, and an error, too.
    if is_polled && polled.iter().all(|one| one.revents() == PollFlags::OUT) {
        // There is nobody else to tell of an error.
        let _ = rustix::io::write(stderr, message);
    }
}
