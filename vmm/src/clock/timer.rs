//! A POSIX timer whose signal goes to one thread (timer_create(2), SIGEV_THREAD_ID).

use std::io;
use std::ptr;

use super::{Grid, timespec};

/// A timer on CLOCK_MONOTONIC that signals the thread that made it.
#[derive(Debug)]
pub struct ThreadTimer {
    // The first timer of a process has id 0, a null pointer: the id says nothing about validity.
    id: libc::timer_t,
}

impl ThreadTimer {
    /// A timer that sends `signal` to the calling thread; it stands still at first.
    ///
    /// # Errors
    /// What timer_create(2) says: too many timers or pending signals for this user.
    pub fn for_this_thread(signal: i32) -> io::Result<Self> {
        // SAFETY: sigevent is plain data for which all zeroes is a valid value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        // SAFETY: gettid has no arguments and cannot fail.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut id: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are to live values of the right types.
        let result =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut id) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { id })
    }

    /// Signals when the next tick of `grid` is due, and each period after it if the grid is even.
    pub fn arm(&self, grid: &Grid) {
        let interval = if grid.is_even() { grid.period() } else { 0 };
        self.set(grid.next(), interval);
    }

    /// Signals no more; a signal that is pending already stays so.
    pub fn disarm(&self) {
        self.set(0, 0);
    }

    fn set(&self, at: u64, interval: u64) {
        let setting = libc::itimerspec {
            it_interval: timespec(interval),
            it_value: timespec(at),
        };
        // SAFETY: the timer exists until drop, `setting` is valid, the old value isn't wanted.
        let result = unsafe {
            libc::timer_settime(
                self.id,
                libc::TIMER_ABSTIME,
                &raw const setting,
                ptr::null_mut(),
            )
        };
        debug_assert_eq!(result, 0, "timer_settime refused a valid time");
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `for_this_thread` and is deleted once.
        unsafe { libc::timer_delete(self.id) };
    }
}
