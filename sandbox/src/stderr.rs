//! Standard error, for a process that ends.

/// Writes `message` to standard error if that takes it at once; else nobody hears of it. `eprintln!` would wait: for who reads a full pipe,
/// or for the lock that another thread holds while it waits for that. A handler of signals may call it (signal-safety(7)), and all
/// filters allow what it does.
pub fn write_at_once(message: &[u8]) {
    let mut polled = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: poll(2) gets one place, and write(2) the message's bytes.
    unsafe {
        // A pipe that nobody can read any more has room, and an error, too.
        if libc::poll(&raw mut polled, 1, 0) == 1 && polled.revents == libc::POLLOUT {
            // There is nobody else to tell of an error.
            libc::write(polled.fd, message.as_ptr().cast(), message.len());
        }
    }
}
