//! Standard error, for a process that ends.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stderr;

/// Writes `message` to standard error if there is room for it now, and drops it otherwise. `eprintln!` would wait for the reader of a full pipe,
/// or for another thread that waits for that reader and holds the lock. A signal handler may call this function (signal-safety(7)), and all
/// filters allow its system calls.
pub fn write_at_once(message: &[u8]) {
    let stderr = stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let is_polled = poll(&mut polled, Some(&Timespec::default())) == Ok(1);
    // A pipe without a reader is writable, and has an error, too.
    if is_polled && polled.iter().all(|one| one.revents() == PollFlags::OUT) {
        // An error can't be reported anywhere else.
        let _ = rustix::io::write(stderr, message);
    }
}
