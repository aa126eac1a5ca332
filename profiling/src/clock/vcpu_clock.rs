//! One vCPU's clock, on that vCPU's own thread.

use std::io;

use super::elapsed_ticks::TickAccount;
use super::grid::aligned_start;
use super::{ClockBackend, ElapsedTicks, Grid, ThreadBackend};
use crate::signals;

#[derive(Clone, Copy, Debug)]
enum State {
    Stopped,
    Ticking(Grid),
    Halted(Grid),
}

/// Counts and classifies the ticks that have passed whenever KVM_RUN was interrupted, and starts the timer
/// for the next tick.
#[derive(Debug)]
pub struct VcpuClock<B = ThreadBackend> {
    vcpu: u16,
    hz: u32,
    jitter: bool,
    pub(super) backend: B,
    account: TickAccount,
    // When the timer's next signal is due, in ns.
    next_signal: u64,
    state: State,
}

impl VcpuClock {
    /// A clock of the calling thread, which runs vCPU number `vcpu`. The clock is stopped at first.
    ///
    /// # Errors
    /// When the host gives no timer.
    pub fn for_this_thread(vcpu: u16, jitter: bool) -> io::Result<Self> {
        let backend = ThreadBackend::for_this_thread()?;
        Ok(Self::with_backend(vcpu, backend, jitter))
    }
}

impl<B: ClockBackend> VcpuClock<B> {
    /// The clock of vCPU number `vcpu` on this backend; with `jitter`, its ticks have a random phase.
    /// It is stopped at first.
    pub fn with_backend(vcpu: u16, backend: B, jitter: bool) -> Self {
        Self {
            vcpu,
            hz: 0,
            jitter,
            backend,
            account: TickAccount::default(),
            next_signal: 0,
            state: State::Stopped,
        }
    }

    /// The clock's backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The clock's backend, mutable.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Ticks a second; 0 while it is stopped.
    pub fn hz(&self) -> u32 {
        self.hz
    }

    /// True while the vCPU is halted and its ticks are accounted later.
    pub fn is_halted(&self) -> bool {
        matches!(self.state, State::Halted(_))
    }

    /// Restarts it at `hz` ticks a second, or stops it with 0. `now` is the current time, in ns of
    /// CLOCK_MONOTONIC.
    pub fn restart(&mut self, hz: u32, now: u64) {
        self.stop();
        if hz == 0 {
            return;
        }
        let seed = self.jitter.then_some(now ^ u64::from(self.vcpu));
        let start = aligned_start(now, hz);
        self.hz = hz;
        self.backend.take_run_delay();
        self.backend.take_tracer_delay();
        self.resume(Grid::new(start, hz, seed));
    }

    /// Stops it. Ticks that have not been accounted until now never will be.
    pub fn stop(&mut self) {
        self.hz = 0;
        self.backend.stop_timer();
        self.backend.stop_alarm();
        self.state = State::Stopped;
    }

    /// Accounts the ticks that have passed at `now` (ns), after `signal` interrupted KVM_RUN. None if there
    /// were none, or if they are accounted later because the vCPU is halted.
    pub fn on_interrupt(&mut self, now: u64, signal: Option<i32>) -> Option<ElapsedTicks> {
        match self.state {
            State::Stopped => None,
            State::Ticking(mut grid) => {
                let ticks = grid.take(now);
                self.state = State::Ticking(grid);
                if ticks == 0 {
                    return None;
                }
                let late = now.saturating_sub(grid.last());
                let elapsed = self
                    .account
                    .explain(ticks, late, grid.period(), &mut self.backend);
                self.prepare_next(&grid, now, elapsed.lost > 0);
                Some(elapsed)
            }
            State::Halted(mut grid) => {
                if signal != Some(signals::alarm()) {
                    return None;
                }
                let ticks = grid.take(now);
                let run_time = self.backend.run_time();
                self.resume(grid);
                let missed = ticks.checked_sub(1)?;
                let period = grid.period();
                Some(
                    self.account
                        .explain_alarm(missed, run_time, period, &mut self.backend),
                )
            }
        }
    }

    /// Accounts a halted vCPU's ticks up to `now` (ns), without a sample; none if it is not halted.
    pub fn account_halted(&mut self, now: u64) -> ElapsedTicks {
        let State::Halted(mut grid) = self.state else {
            return ElapsedTicks::default();
        };
        // The guest has run for less than a tick since. There will be a sample for that time when the
        // alarm rings, so that a tick in it must not count as idle.
        let ticks = grid.take(now.saturating_sub(self.backend.run_time()));
        self.state = State::Halted(grid);
        self.account
            .explain_halted(ticks, grid.period(), &mut self.backend)
    }

    /// Notes that the vCPU is halted. From here on no tick wakes it up, if the host has the alarm for that.
    pub fn halt(&mut self) {
        let State::Ticking(grid) = self.state else {
            return;
        };
        if !self.backend.start_alarm(grid.period()) {
            return;
        }
        self.backend.stop_timer();
        self.backend.take_run_delay();
        self.state = State::Halted(grid);
    }

    fn resume(&mut self, grid: Grid) {
        self.start_timer(grid.next(), &grid);
        self.state = State::Ticking(grid);
    }

    fn start_timer(&mut self, first: u64, grid: &Grid) {
        self.next_signal = first;
        self.backend.start_timer(first, grid);
    }

    /// After a tick: restarts the timer if it does not continue by itself. If taking a sample lasts longer
    /// than a period, the next signal would always precede the guest: it is postponed by twice the time by
    /// which this one was overdue, and ticks in that time are lost too.
    fn prepare_next(&mut self, grid: &Grid, now: u64, some_lost: bool) {
        let overdue = now.saturating_sub(self.next_signal);
        let too_slow = some_lost && overdue >= grid.period();
        if too_slow {
            self.start_timer(grid.at_or_after(now + 2 * overdue), grid);
        } else if grid.is_even() {
            self.next_signal = grid.next();
        } else {
            self.start_timer(grid.next(), grid);
        }
    }
}
