//! The alarm of a halted vCPU. It rings after one tick of the thread's own processor time. Events of guest time use it, too.
//!
//! While the vCPU is halted, its thread sleeps in KVM_RUN and uses no processor time, so the alarm costs no
//! wake-ups. Once the guest runs again, the alarm rings when the guest has run for one tick, in however
//! many pieces. The time before is idle time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use vmm_sys_util::syscall::SyscallReturnCode;

use crate::perf_event::{self, Event};
use crate::signals;

const PERF_EVENT_IOC_DISABLE: libc::Ioctl = 0x2401;
const PERF_EVENT_IOC_REFRESH: libc::Ioctl = 0x2402;
const PERF_EVENT_IOC_RESET: libc::Ioctl = 0x2403;
const PERF_EVENT_IOC_PERIOD: libc::Ioctl = 0x4008_2404;

/// How the ticks of a halted vCPU are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaltedTicks {
    /// All at once when it runs again; none of them wakes it up.
    AtWakeUp,
    /// One by one, each with a wake-up, because the host refuses perf_event_open(2).
    OneByOne,
}

impl HaltedTicks {
    /// The way that this host allows, and the alarm of the calling thread that was made to test it.
    pub fn of_this_host() -> (Self, Option<RunTimeAlarm>) {
        match RunTimeAlarm::for_this_thread(signals::alarm()) {
            Ok(alarm) => (Self::AtWakeUp, Some(alarm)),
            Err(_) => (Self::OneByOne, None),
        }
    }

    /// Its name in the status document.
    pub fn name(self) -> &'static str {
        match self {
            Self::AtWakeUp => "all at the next wake-up",
            Self::OneByOne => "one wake-up each",
        }
    }
}

/// A perf task-clock event on the calling thread, with its overflow as a signal.
#[derive(Debug)]
pub struct RunTimeAlarm {
    event: File,
}

impl RunTimeAlarm {
    /// An alarm that sends `signal` to the calling thread; it is disarmed at first.
    ///
    /// # Errors
    /// perf_event_open(2) fails: with EACCES or EPERM if the host forbids it.
    pub fn for_this_thread(signal: i32) -> io::Result<Self> {
        let event = Event::TaskClock.open(1_000_000, 0)?;
        perf_event::signal_this_thread(&event, signal)?;
        Ok(Self { event })
    }

    /// Sends the signal once, after the thread has run for `run_time` ns from now on.
    ///
    /// # Errors
    /// The kernel refuses it. The event is off then.
    pub fn arm(&self, run_time: u64) -> io::Result<()> {
        // Setting a period discards the rest of the old one, but not the count.
        self.control(PERF_EVENT_IOC_RESET, 0)?;
        self.control(PERF_EVENT_IOC_PERIOD, &raw const run_time as libc::c_ulong)?;
        self.control(PERF_EVENT_IOC_REFRESH, 1)
    }

    /// How long the thread has run since the alarm was armed, in ns; None if the count can't be read.
    pub fn run_time(&self) -> Option<u64> {
        perf_event::count(&self.event)
    }

    /// Disarms the alarm. A signal that is already pending stays pending.
    pub fn disarm(&self) {
        // An event that can't be turned off sends one signal at most: the grid takes no tick for it.
        let _ = self.control(PERF_EVENT_IOC_DISABLE, 0);
    }

    fn control(&self, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the descriptor is a perf event's; PERIOD's argument points to a live u64, the
        // others take a number.
        let result = unsafe { libc::ioctl(self.event.as_raw_fd(), request, argument) };
        SyscallReturnCode(result).into_empty_result()
    }
}
