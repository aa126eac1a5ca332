//! The backend of a vCPU's clock: timers, and the host scheduler's statistics of the vCPU's thread.

use std::io;

use super::Grid;
use super::halted::RunTimeAlarm;
use super::run_delay::RunDelay;
use super::timer::ThreadTimer;
use crate::{perf_event, signals};

/// The timers and the scheduler statistics of one vCPU's thread.
///
/// [`VcpuClock`](super::VcpuClock) uses no other source of time, so that its tests can simulate time.
pub trait ClockBackend {
    /// Makes the alarm if that hasn't been tried before. This may take milliseconds, so it is done before a clock starts and not when
    /// the guest starts.
    fn prepare_alarm(&mut self) {}

    /// Signals the thread at `first` (ns of CLOCK_MONOTONIC), on which a tick of `grid` is due, and at
    /// each later tick if the grid is even.
    fn start_timer(&mut self, first: u64, grid: &Grid);

    /// Ends what [`start_timer`](Self::start_timer) began. A signal that is pending stays pending.
    fn stop_timer(&mut self);

    /// Signals the thread once, after it has used `run_time` ns of processor time from now on. False
    /// if the host cannot do that.
    fn start_alarm(&mut self, run_time: u64) -> bool;

    /// Ends what [`start_alarm`](Self::start_alarm) began. A signal that is pending stays pending.
    fn stop_alarm(&mut self);

    /// How much processor time the thread has used since the alarm was started, in ns; 0 if the host
    /// does not say.
    fn run_time(&self) -> u64;

    /// How long the thread was runnable but waited for a processor since the last call, in ns.
    fn take_run_delay(&mut self) -> u64;

    /// How long the thread that makes the ticks waited for a processor since the last call, in ns; 0 if it is the vCPU's own thread.
    fn take_tracer_delay(&mut self) -> u64;
}

/// The alarm of halted vCPUs.
#[derive(Debug)]
enum Alarm {
    /// It hasn't been needed yet.
    Unmade,
    Made(RunTimeAlarm),
    /// The host refuses perf_event_open(2).
    Refused,
}

impl Alarm {
    fn made(&self) -> Option<&RunTimeAlarm> {
        match self {
            Self::Made(alarm) => Some(alarm),
            Self::Unmade | Self::Refused => None,
        }
    }
}

/// The backend on a real host: POSIX timers, a perf task-clock event, and `/proc/thread-self/schedstat`.
#[derive(Debug)]
pub struct ThreadBackend {
    timer: ThreadTimer,
    alarm: Alarm,
    run_delay: RunDelay,
}

impl ThreadBackend {
    /// The backend for the calling thread, which runs a vCPU.
    ///
    /// # Errors
    /// timer_create(2) fails: this user has too many timers or pending signals.
    pub fn for_this_thread() -> io::Result<Self> {
        Ok(Self {
            timer: ThreadTimer::for_this_thread(signals::kick())?,
            alarm: Alarm::Unmade,
            run_delay: RunDelay::of_this_thread(),
        })
    }
}

impl ClockBackend for ThreadBackend {
    fn prepare_alarm(&mut self) {
        if matches!(self.alarm, Alarm::Unmade) {
            self.alarm = match RunTimeAlarm::for_this_thread(signals::alarm()) {
                Ok(alarm) => Alarm::Made(alarm),
                Err(error) => {
                    log::warn!(
                        "No perf task clock on this host ({}): halted vCPUs wake up for each tick",
                        perf_event::why_not(&error)
                    );
                    Alarm::Refused
                }
            };
        }
    }

    fn start_timer(&mut self, first: u64, grid: &Grid) {
        self.timer.arm(first, grid);
    }

    fn stop_timer(&mut self) {
        self.timer.disarm();
    }

    fn start_alarm(&mut self, run_time: u64) -> bool {
        let Some(alarm) = self.alarm.made() else {
            return false;
        };
        if let Err(error) = alarm.arm(run_time) {
            log::warn!("The perf task clock failed ({error}): halted vCPUs wake up for each tick");
            self.alarm = Alarm::Refused;
            return false;
        }
        true
    }

    fn stop_alarm(&mut self) {
        if let Some(alarm) = self.alarm.made() {
            alarm.disarm();
        }
    }

    fn run_time(&self) -> u64 {
        let alarm = self.alarm.made();
        alarm.and_then(RunTimeAlarm::run_time).unwrap_or(0)
    }

    fn take_run_delay(&mut self) -> u64 {
        self.run_delay.take()
    }

    fn take_tracer_delay(&mut self) -> u64 {
        0
    }
}
