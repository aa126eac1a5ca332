//! A POSIX timer whose signal goes to one thread (timer_create(2), SIGEV_THREAD_ID).

use std::io;
use std::ptr;

use vmm_sys_util::syscall::SyscallReturnCode;

use super::Grid;
use crate::time::timespec;

/// Timers on CLOCK_MONOTONIC that signal the thread that made them.
///
/// There are two, for every other tick each. A periodic timer is restarted when its signal is
/// taken; with one alone, that would be the processor's next timer event each time and its clock
/// would have to be set twice a tick. With two, the next event is in the queue already. Where
/// setting the clock exits a virtual machine, that is a twentieth of a sample's cost.
#[derive(Debug)]
pub struct ThreadTimer {
    pair: [PosixTimer; 2],
}

impl ThreadTimer {
    /// A timer that sends `signal` to the calling thread; it is disarmed at first.
    ///
    /// # Errors
    /// What timer_create(2) says: too many timers or pending signals for this user.
    pub fn for_this_thread(signal: i32) -> io::Result<Self> {
        Ok(Self {
            pair: [PosixTimer::new(signal)?, PosixTimer::new(signal)?],
        })
    }

    /// Signals at time `first`, on which a tick of `grid` is due, and at all later ticks if the
    /// grid is even.
    pub fn arm(&self, first: u64, grid: &Grid) {
        let [one, other] = &self.pair;
        if grid.is_even() {
            one.set(first, 2 * grid.period());
            other.set(first + grid.period(), 2 * grid.period());
        } else {
            one.set(first, 0);
        }
    }

    /// Disarms both. A signal that is already pending stays pending.
    pub fn disarm(&self) {
        for timer in &self.pair {
            timer.set(0, 0);
        }
    }
}

/// One timer on CLOCK_MONOTONIC that signals the thread that made it.
#[derive(Debug)]
struct PosixTimer {
    // The first timer of a process has id 0, a null pointer: it is valid.
    id: libc::timer_t,
}

impl PosixTimer {
    /// A timer that sends `signal` to the calling thread; it is disarmed at first.
    ///
    /// # Errors
    /// What timer_create(2) says: too many timers or pending signals for this user.
    fn new(signal: i32) -> io::Result<Self> {
        // SAFETY: sigevent is plain data for which all zeroes is a valid value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_pid();
        let mut id: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are to live values of the right types.
        let result =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut id) };
        SyscallReturnCode(result).into_empty_result()?;
        Ok(Self { id })
    }

    /// Signals at time `at`, and each `interval` after it, both in ns; 0 for both disarms it.
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

impl Drop for PosixTimer {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `new` and is deleted once.
        unsafe { libc::timer_delete(self.id) };
    }
}
