//! Selects the ticks of a faster clock that a device with a rate of its own counts.

/// Selects every n-th tick of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The n of every n-th tick.
    period: u64,
    /// Ticks since the last selected one; below `period`.
    passed: u64,
}

impl Phase {
    /// Selects ticks of a clock at `hz`, `rate` a second (both in Hz); all of them if the clock is slower.
    pub fn new(hz: u32, rate: u32) -> Self {
        Self {
            period: u64::from(hz.checked_div(rate).unwrap_or(1).max(1)),
            passed: 0,
        }
    }

    /// The number of selected ones among the next `ticks` ticks.
    pub fn pass(&mut self, ticks: u64) -> u64 {
        let whole = ticks / self.period;
        // Less than two periods, so this can't overflow.
        let rest = self.passed + ticks % self.period;
        self.passed = rest % self.period;
        whole + rest / self.period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_tick_is_selected() {
        let mut phase = Phase::new(1000, 100);
        let selected: Vec<u64> = (0..25).map(|_| phase.pass(1)).collect();
        let places = selected
            .iter()
            .enumerate()
            .filter(|(_, count)| **count == 1);
        assert_eq!(places.map(|(place, _)| place).collect::<Vec<_>>(), [9, 19]);
        assert_eq!(phase.pass(4), 0);
        assert_eq!((phase.pass(1), phase.pass(u64::MAX)), (1, u64::MAX / 10));
    }

    #[test]
    fn all_ticks_of_a_slow_clock_are_selected() {
        for hz in [0, 1, 100, 199] {
            assert_eq!(Phase::new(hz, 100).pass(7), 7);
        }
    }
}
