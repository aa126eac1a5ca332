//! A clock's backend without time: a test sets the host's values, and checks what the clock has
//! started.

use std::mem;

use crate::clock::{ClockBackend, ElapsedTicks, Grid};

/// One millisecond, in ns: the period of most tests.
pub const MS: u64 = 1_000_000;
/// One microsecond, in ns.
pub const US: u64 = 1_000;
/// The rate whose period is [`MS`].
pub const HZ: u32 = 1_000;

/// The clock's setting of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// The time of the first signal, in ns.
    pub first: u64,
    /// The time between signals, in ns; None for a single one.
    pub period: Option<u64>,
}

impl Timer {
    /// The time of the next signal after `time`, in ns, if there is another one.
    pub fn next_after(&self, time: u64) -> Option<u64> {
        if time < self.first {
            return Some(self.first);
        }
        let period = self.period?;
        Some(self.first + ((time - self.first) / period + 1) * period)
    }
}

/// The backend.
#[derive(Debug, Default)]
pub struct ManualBackend {
    /// The timer, while it runs.
    pub timer: Option<Timer>,
    /// Processor time until the alarm signals, in ns, while it is on.
    pub alarm: Option<u64>,
    /// Whether the host refuses the alarm.
    pub refuses_alarm: bool,
    /// Processor time that the thread has used since the alarm was started, in ns.
    pub run_time: u64,
    /// Run delay that wasn't read yet, in ns.
    pub run_delay: u64,
    /// Delay of the tracer's thread that wasn't read yet, in ns.
    pub tracer_delay: u64,
    /// How often the run delay was read.
    pub reads: u32,
}

impl ClockBackend for ManualBackend {
    fn start_timer(&mut self, first: u64, grid: &Grid) {
        let period = grid.is_even().then_some(grid.period());
        self.timer = Some(Timer { first, period });
    }

    fn stop_timer(&mut self) {
        self.timer = None;
    }

    fn start_alarm(&mut self, run_time: u64) -> bool {
        if self.refuses_alarm {
            return false;
        }
        self.alarm = Some(run_time);
        self.run_time = 0;
        true
    }

    fn stop_alarm(&mut self) {
        self.alarm = None;
    }

    fn run_time(&self) -> u64 {
        self.run_time
    }

    fn take_run_delay(&mut self) -> u64 {
        self.reads += 1;
        mem::take(&mut self.run_delay)
    }

    fn take_tracer_delay(&mut self) -> u64 {
        mem::take(&mut self.tracer_delay)
    }
}

/// Ticks that were accounted without a sample.
pub fn unsampled(idle: u64, stolen: u64, lost: u64) -> ElapsedTicks {
    ElapsedTicks {
        idle,
        stolen,
        lost,
        sample: false,
    }
}

/// Ticks that were accounted, and one more that is sampled.
pub fn sampled(idle: u64, stolen: u64, lost: u64) -> ElapsedTicks {
    ElapsedTicks {
        sample: true,
        ..unsampled(idle, stolen, lost)
    }
}

/// The number of those ticks, with the sampled one.
pub fn total(elapsed: &ElapsedTicks) -> u64 {
    elapsed.idle + elapsed.stolen + elapsed.lost + u64::from(elapsed.sample)
}
