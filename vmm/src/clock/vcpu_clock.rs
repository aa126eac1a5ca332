//! One vCPU's clock, on that vCPU's own thread.

use std::io;
use std::sync::Arc;

use super::grid::aligned_start;
use super::halted::RunTimeAlarm;
use super::run_delay::RunDelay;
use super::timer::ThreadTimer;
use super::{Grid, Ticker, monotonic_ns};
use crate::vcpu::signals;

/// How the ticks of a halted vCPU are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaltedTicks {
    /// Reckoned when it runs again; no wake-up for them.
    Reckoned,
    /// One wake-up each: the host refuses perf_event_open(2).
    WokenUp,
}

impl HaltedTicks {
    /// What this host allows.
    pub fn of_this_host() -> Self {
        match RunTimeAlarm::for_this_thread(signals::alarm()) {
            Ok(_) => Self::Reckoned,
            Err(_) => Self::WokenUp,
        }
    }

    /// The words for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reckoned => "reckoned",
            Self::WokenUp => "one wake-up each",
        }
    }
}

/// Ticks that have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Ticks on which the vCPU was halted.
    pub idle: u64,
    /// Ticks on which the host didn't run the thread.
    pub stolen: u64,
    /// Ticks that were missed for another reason.
    pub lost: u64,
    /// Whether there is one more tick after those, to be sampled now.
    pub sample: bool,
}

/// A tick that is seen later than this, in ns, may have come while the host didn't run the thread:
/// a sample would then tell where the vCPU was put aside, not what it did on the tick.
const LATE_NS: u64 = 100_000;
/// After this many ticks in time the run delay is read anyway, so that what it grew
/// by long ago explains nothing.
const REFRESH_RUN_DELAY_TICKS: u32 = 64;

#[derive(Debug)]
enum Driver {
    Timer(ThreadTimer),
    Ticker(Arc<Ticker>),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Stopped,
    Ticking(Grid),
    Halted(Grid),
}

/// Says how many ticks have passed whenever KVM_RUN was interrupted, and sees to the next one.
#[derive(Debug)]
pub struct VcpuClock {
    vcpu: u16,
    hz: u32,
    jitter: bool,
    driver: Driver,
    alarm: Option<RunTimeAlarm>,
    run_delay: RunDelay,
    ticker_delay_seen: u64,
    // When the next signal is to come, in ns.
    armed_for: u64,
    // Run delay of a halted vCPU that no tick has been stolen for yet, in ns.
    halted_delay: u64,
    ticks_since_run_delay: u32,
    state: State,
}

impl VcpuClock {
    /// A clock of the calling thread, which is that of vCPU number `vcpu`. It stands still at first.
    /// `ticker` drives it if there is one, else a timer of its own.
    ///
    /// # Errors
    /// When the host gives no timer.
    pub fn for_this_thread(
        vcpu: u16,
        ticker: Option<Arc<Ticker>>,
        jitter: bool,
    ) -> io::Result<Self> {
        let driver = match ticker {
            Some(ticker) => Driver::Ticker(ticker),
            None => Driver::Timer(ThreadTimer::for_this_thread(signals::kick())?),
        };
        let alarm = RunTimeAlarm::for_this_thread(signals::alarm())
            .inspect_err(|error| {
                log::warn!(
                    "No perf task clock on this host ({error}): halted vCPUs wake up for each tick"
                );
            })
            .ok();
        Ok(Self {
            vcpu,
            hz: 0,
            jitter,
            driver,
            alarm,
            run_delay: RunDelay::of_this_thread(),
            ticker_delay_seen: 0,
            armed_for: 0,
            halted_delay: 0,
            ticks_since_run_delay: 0,
            state: State::Stopped,
        })
    }

    /// Ticks a second; 0 while it stands still.
    pub fn hz(&self) -> u32 {
        self.hz
    }

    /// True while the vCPU's ticks are left to be reckoned.
    pub fn is_halted(&self) -> bool {
        matches!(self.state, State::Halted(_))
    }

    /// Starts it anew at `hz`, or stops it with 0.
    pub fn restart(&mut self, hz: u32) {
        self.stop();
        if hz == 0 {
            return;
        }
        let now = monotonic_ns();
        let seed = self.jitter.then_some(now ^ u64::from(self.vcpu));
        let start = aligned_start(now, hz);
        self.hz = hz;
        self.run_delay.take();
        self.ticker_delay();
        self.tick_on(Grid::new(start, hz, seed));
    }

    fn stop(&mut self) {
        self.hz = 0;
        self.silence();
        if let Some(alarm) = &self.alarm {
            alarm.disarm();
        }
        self.state = State::Stopped;
    }

    /// Takes the ticks that have passed at `now`, after an interruption by `signal`.
    pub fn take(&mut self, now: u64, signal: Option<i32>) -> Option<Due> {
        match self.state {
            State::Stopped => None,
            State::Ticking(mut grid) => {
                let ticks = grid.take(now);
                self.state = State::Ticking(grid);
                if ticks == 0 {
                    return None;
                }
                let due = self.explain(ticks, now - grid.last(), grid.period());
                self.see_to_next(&grid, now, due.lost > 0);
                Some(due)
            }
            State::Halted(mut grid) => {
                if signal != Some(signals::alarm()) {
                    return None;
                }
                let ticks = grid.take(now);
                let busy = self.run_time() / grid.period();
                self.tick_on(grid);
                let missed = ticks.checked_sub(1)?;
                let stolen = self.stolen_of(missed, grid.period());
                // A host whose timers are late lets the guest run on for longer than the alarm was
                // set to: on those ticks it wasn't idle.
                let lost = busy.saturating_sub(1).min(missed - stolen);
                Some(Due {
                    idle: missed - stolen - lost,
                    stolen,
                    lost,
                    sample: true,
                })
            }
        }
    }

    /// How long the vCPU has run since it was halted, in ns.
    fn run_time(&self) -> u64 {
        let alarm = self.alarm.as_ref();
        alarm.and_then(RunTimeAlarm::run_time).unwrap_or(0)
    }

    /// Brings the account of a halted vCPU up to `now`, without a sample.
    pub fn settle(&mut self, now: u64) -> Due {
        let State::Halted(mut grid) = self.state else {
            return Due::default();
        };
        // For the time that the guest has run since, less than a tick, there will be a sample when
        // the alarm rings: a tick that falls into it must not be taken for an idle one.
        let ticks = grid.take(now.saturating_sub(self.run_time()));
        self.state = State::Halted(grid);
        let stolen = self.stolen_of(ticks, grid.period());
        Due {
            idle: ticks - stolen,
            stolen,
            ..Due::default()
        }
    }

    /// The vCPU is halted: no tick wakes it up from here on, if that can be had.
    pub fn halt(&mut self) {
        let (State::Ticking(grid), Some(alarm)) = (self.state, &self.alarm) else {
            return;
        };
        if let Err(error) = alarm.arm(grid.period()) {
            log::warn!("The perf task clock failed ({error}): halted vCPUs wake up for each tick");
            self.alarm = None;
            return;
        }
        self.silence();
        self.run_delay.take();
        self.state = State::Halted(grid);
    }

    fn tick_on(&mut self, grid: Grid) {
        self.arm(grid.next(), &grid);
        self.state = State::Ticking(grid);
    }

    fn arm(&mut self, first: u64, grid: &Grid) {
        self.armed_for = first;
        match &self.driver {
            Driver::Timer(timer) => timer.arm(first, grid),
            Driver::Ticker(ticker) => ticker.set(self.vcpu, self.hz, first),
        }
    }

    /// After a tick: arms what doesn't go on by itself. Where taking a sample lasts longer than a
    /// period, the next signal would be there before the guest is, each time: it gets as much time
    /// as was lost, and what falls into that is lost too.
    fn see_to_next(&mut self, grid: &Grid, now: u64, some_lost: bool) {
        let overdue = now.saturating_sub(self.armed_for);
        let too_slow = some_lost && overdue >= grid.period();
        if too_slow {
            self.arm(grid.at_or_after(now + 2 * overdue), grid);
        } else if grid.is_even() {
            self.armed_for = grid.next();
        } else {
            self.arm(grid.next(), grid);
        }
    }

    fn silence(&self) {
        match &self.driver {
            Driver::Timer(timer) => timer.disarm(),
            Driver::Ticker(ticker) => ticker.set(self.vcpu, 0, 0),
        }
    }

    /// What became of `ticks`, the last of which is seen `late` ns after it was due. Reads the host
    /// scheduler's account only if need be.
    fn explain(&mut self, ticks: u64, late: u64, period: u64) -> Due {
        self.ticks_since_run_delay += 1;
        let in_time = ticks == 1 && late < LATE_NS;
        if in_time && self.ticks_since_run_delay < REFRESH_RUN_DELAY_TICKS {
            return Due {
                sample: true,
                ..Due::default()
            };
        }
        self.ticks_since_run_delay = 0;
        let missed = ticks - 1;
        let delay = self.run_delay.take();
        if !in_time && delay >= missed * period + late / 2 {
            return Due {
                stolen: ticks,
                ..Due::default()
            };
        }
        let stolen = missed.min(whole_ticks(delay + self.ticker_delay(), period));
        Due {
            idle: 0,
            stolen,
            lost: missed - stolen,
            sample: true,
        }
    }

    /// How many of `ticks` of a halted vCPU the host's scheduler explains.
    fn stolen_of(&mut self, ticks: u64, period: u64) -> u64 {
        // Many short waits add up: what explains no whole tick yet is kept.
        self.halted_delay += self.run_delay.take();
        let stolen = ticks.min(self.halted_delay / period);
        self.halted_delay = (self.halted_delay - stolen * period).min(period);
        stolen
    }

    /// How much later than due the host ran the ticker's thread since this was last asked, in ns.
    fn ticker_delay(&mut self) -> u64 {
        let Driver::Ticker(ticker) = &self.driver else {
            return 0;
        };
        let total = ticker.delay();
        let grown = total - self.ticker_delay_seen;
        self.ticker_delay_seen = total;
        grown
    }
}

/// `ns` to the nearest tick: a short wait for a processor explains none.
fn whole_ticks(ns: u64, period: u64) -> u64 {
    (ns + period / 2) / period
}
