//! Ends a guest, or the profiling of one, after a certain time.

use std::io;
use std::time::Duration;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;

use super::VmError;
use super::event_loop::add;
use super::termination::Termination;

/// A timer that asks for the end.
pub(crate) struct TimeLimit {
    timer: TimerFd,
    stop_request: EventFd,
}

impl TimeLimit {
    /// Starts a timer that asks `termination` for the end after this time.
    ///
    /// # Errors
    /// The host can't make a timer.
    pub fn start(time: Duration, termination: &Termination) -> Result<Self, VmError> {
        Self::by(time, termination.stop_request()).map_err(VmError::host("a timer"))
    }

    fn by(time: Duration, stop_request: io::Result<EventFd>) -> io::Result<Self> {
        let mut timer = TimerFd::new()?;
        // A timer of 0 would never expire.
        timer.reset(time.max(Duration::from_nanos(1)), None)?;
        Ok(Self {
            timer,
            stop_request: stop_request?,
        })
    }
}

impl MutEventSubscriber for TimeLimit {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        // The timer is readable, so this doesn't wait.
        if self.timer.wait().is_ok() {
            // If the counter is full, the request has been made already.
            let _ = self.stop_request.write(1);
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, Events::new(&self.timer, EventSet::IN));
    }
}
