//! The times of the ticks of one vCPU's clock.

use super::jitter::Jitter;

/// If more than this many periods have passed at once, ticks are counted by division instead of one by one.
const SKIP_AFTER_PERIODS: u64 = 64;

/// The last multiple of the period at `hz` ticks a second (0 is taken as 1) that isn't after `now`,
/// in ns of CLOCK_MONOTONIC.
///
/// The kernel's own tick is at multiples of its period, too (`tick_setup_sched_timer`,
/// `kernel/time/tick-sched.c`). If both coincide, the guest is interrupted once, not twice.
pub fn aligned_start(now: u64, hz: u32) -> u64 {
    let period = 1_000_000_000 / u64::from(hz.max(1));
    now - now % period
}

/// The times at which ticks are due: one period apart, or, with jitter, one period apart on average.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    last: u64,
    next: u64,
    period: u64,
    jitter: Option<Jitter>,
}

impl Grid {
    /// Ticks from `start` (ns of CLOCK_MONOTONIC) on, at `hz` ticks a second (0 is taken as 1);
    /// the first is due one period after `start`. With a seed for jitter, each distance between
    /// ticks is drawn anew from half a period to one and a half.
    pub fn new(start: u64, hz: u32, jitter_seed: Option<u64>) -> Self {
        let mut grid = Self {
            last: start,
            next: start,
            period: 1_000_000_000 / u64::from(hz.max(1)),
            jitter: jitter_seed.map(Jitter::new),
        };
        grid.next += grid.distance();
        grid
    }

    /// The time between ticks, on average, in ns.
    pub fn period(&self) -> u64 {
        self.period
    }

    /// When the next tick that hasn't been taken is due, in ns.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// When the first tick that isn't earlier than `time` is due. With jitter, only the next tick is known; for
    /// later ticks the result is `time` itself.
    pub fn at_or_after(&self, time: u64) -> u64 {
        let wait = time.saturating_sub(self.next);
        if self.is_even() {
            self.next + wait.div_ceil(self.period) * self.period
        } else {
            self.next + wait
        }
    }

    /// When the last tick that has been taken was due, in ns; the start if none has been.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// True if a periodic timer can drive the grid.
    pub fn is_even(&self) -> bool {
        self.jitter.is_none()
    }

    /// Takes all ticks that are due at `now`, and returns their number.
    pub fn take(&mut self, now: u64) -> u64 {
        if now < self.next {
            return 0;
        }
        let mut taken = 0;
        let periods = (now - self.next) / self.period;
        if self.is_even() || periods > SKIP_AFTER_PERIODS {
            taken += periods;
            self.next += periods * self.period;
        }
        while self.next <= now {
            taken += 1;
            self.last = self.next;
            self.next += self.distance();
        }
        taken
    }

    fn distance(&mut self) -> u64 {
        match &mut self.jitter {
            Some(jitter) => self.period / 2 + jitter.below(self.period + 1),
            None => self.period,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_each_tick_once() {
        let mut grid = Grid::new(1_000, 1_000, None);
        assert_eq!(grid.next(), 1_001_000);
        assert_eq!(grid.take(1_000_999), 0);
        assert_eq!(grid.take(1_001_000), 1);
        assert_eq!(grid.take(1_001_500), 0);
        assert_eq!(grid.take(5_001_999), 4);
        assert_eq!(grid.last(), 5_001_000);
        assert_eq!(grid.next(), 6_001_000);
    }

    #[test]
    fn starts_on_a_multiple_of_the_period() {
        assert_eq!(aligned_start(7_999_999, 250), 4_000_000);
        assert_eq!(aligned_start(8_000_000, 250), 8_000_000);
        assert_eq!(aligned_start(1, 0), 0);
    }

    #[test]
    fn says_when_a_later_tick_is_due() {
        let grid = Grid::new(0, 1_000, None);
        assert_eq!(grid.at_or_after(0), 1_000_000);
        assert_eq!(grid.at_or_after(1_000_001), 2_000_000);
        assert_eq!(grid.at_or_after(5_000_000), 5_000_000);
    }

    #[test]
    fn tolerates_a_clock_that_goes_backwards() {
        let mut grid = Grid::new(1_000_000, 100, None);
        assert_eq!(grid.take(21_000_000), 2);
        assert_eq!(grid.take(0), 0);
        assert_eq!(grid.take(31_000_000), 1);
    }

    #[test]
    fn jitter_keeps_the_rate_and_leaves_the_phase() {
        let mut grid = Grid::new(0, 1_000, Some(1));
        let mut ticks = 0;
        let mut phases = [false; 4];
        for _ in 0..10_000 {
            let due = grid.next();
            phases[usize::try_from(due % 1_000_000 / 250_000).unwrap()] = true;
            assert_eq!(grid.take(due - 1), 0);
            ticks += grid.take(due);
        }
        assert_eq!(ticks, 10_000);
        assert_eq!(phases, [true; 4]);
        let seconds = grid.next() / 1_000_000_000;
        assert!((9..=10).contains(&seconds), "{seconds}");
    }

    #[test]
    fn counts_a_long_gap_by_division() {
        let mut grid = Grid::new(0, 10_000, Some(1));
        let ticks = grid.take(3_600_000_000_000);
        assert!((35_999_900..=36_000_100).contains(&ticks), "{ticks}");
        assert!(grid.next() > 3_600_000_000_000);
    }
}
