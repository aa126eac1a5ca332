//! What the clock of a vCPU runs on that another program runs: time, and what the host's scheduler says of its thread.

use std::fs::File;
use std::io;
use std::time::Duration;

use crate::clock::{ClockBackend, Grid, RunDelay, ThreadTimes, thread_cpu_ns};

/// How long a thread sleeps that waits for nothing, unless it is kicked.
const LONG: Duration = Duration::from_secs(3600);

/// The clock's timer, which its thread waits for by itself.
#[derive(Clone, Copy, Debug)]
struct Timer {
    next: u64,
    period: u64,
}

/// Rings once a halted vCPU's thread has run for so long, in ns.
#[derive(Clone, Copy, Debug)]
struct Alarm {
    run_before: u64,
    run_time: u64,
}

/// Of one vCPU.
#[derive(Debug)]
pub struct AttachedBackend {
    /// Of the vCPU's thread.
    schedstat: File,
    timer: Option<Timer>,
    alarm: Option<Alarm>,
    delay_seen: u64,
    /// The processor time of the calling thread when that was read, in ns.
    own_time_seen: u64,
    /// Of the calling thread, which makes the ticks.
    own_delay: RunDelay,
}

impl AttachedBackend {
    /// For thread `tid` of process `pid`.
    ///
    /// # Errors
    /// There is no such thread, or the host's kernel keeps no statistics of threads.
    pub fn new(pid: i32, tid: i32) -> io::Result<Self> {
        let schedstat = File::open(format!("/proc/{pid}/task/{tid}/schedstat"))?;
        let delay_seen = ThreadTimes::read(&schedstat)?.delay;
        Ok(Self {
            schedstat,
            timer: None,
            alarm: None,
            delay_seen,
            own_time_seen: own_time(),
            own_delay: RunDelay::of_this_thread(),
        })
    }

    /// How long the clock's thread may sleep from `now` on.
    pub fn sleep(&self, now: u64) -> Duration {
        let due = match (&self.timer, &self.alarm) {
            (Some(timer), _) => Duration::from_nanos(timer.next.saturating_sub(now)),
            // Looking at a halted vCPU's thread doesn't wake it up.
            (None, Some(alarm)) => Duration::from_nanos(alarm.run_time),
            (None, None) => LONG,
        };
        due.min(LONG)
    }

    /// It is `now`, in ns: what was due before has been seen.
    pub fn pass(&mut self, now: u64) {
        if let Some(timer) = &mut self.timer
            && let Some(late) = now.checked_sub(timer.next)
        {
            timer.next += (late / timer.period + 1) * timer.period;
        }
    }

    /// Whether the alarm rings now.
    pub fn rings(&self) -> bool {
        let alarm = self.alarm.as_ref();
        alarm.is_some_and(|alarm| self.run_time() >= alarm.run_time)
    }

    fn times(&self) -> Option<ThreadTimes> {
        // A thread that has ended leaves nothing to read.
        ThreadTimes::read(&self.schedstat).ok()
    }
}

/// The processor time of the calling thread, in ns.
fn own_time() -> u64 {
    thread_cpu_ns(0).unwrap_or_default()
}

impl ClockBackend for AttachedBackend {
    fn start_timer(&mut self, _hz: u32, first: u64, grid: &Grid) {
        // An alarm that has rung.
        self.alarm = None;
        self.timer = Some(Timer {
            next: first,
            period: grid.period(),
        });
    }

    fn stop_timer(&mut self) {
        self.timer = None;
    }

    fn start_alarm(&mut self, run_time: u64) -> bool {
        let Some(times) = self.times() else {
            return false;
        };
        self.alarm = Some(Alarm {
            run_before: times.run,
            run_time,
        });
        true
    }

    fn stop_alarm(&mut self) {
        self.alarm = None;
    }

    fn run_time(&self) -> u64 {
        match (&self.alarm, self.times()) {
            (Some(alarm), Some(times)) => times.run.saturating_sub(alarm.run_before),
            _ => 0,
        }
    }

    fn take_run_delay(&mut self) -> u64 {
        let delay = self.times().map_or(self.delay_seen, |times| times.delay);
        let grown = delay.saturating_sub(self.delay_seen);
        self.delay_seen = delay;
        let own_time = own_time();
        let own_grown = own_time.saturating_sub(self.own_time_seen);
        self.own_time_seen = own_time;
        // For so long the vCPU may have waited for this thread's own work.
        grown.saturating_sub(own_grown)
    }

    fn take_ticker_delay(&mut self) -> u64 {
        self.own_delay.take()
    }
}
