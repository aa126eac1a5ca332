//! The account of the clock's ticks.

use std::iter::Sum;

use serde::{Deserialize, Serialize};

use super::Ticks;

/// The clock's own account, for one vCPU or summed over several:
/// `ticks == sampled + idle + stolen + lost` at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockLedger {
    /// All ticks since the clock first ran.
    pub ticks: u64,
    /// Ticks that were captured and delivered.
    pub sampled: u64,
    /// Ticks counted as idle: the vCPU was halted and took no wake-up for them.
    pub idle: u64,
    /// Ticks on which the host didn't run the vCPU's thread.
    pub stolen: u64,
    /// Ticks missed for another reason, a full ring among them.
    pub lost: u64,
}

impl Sum for ClockLedger {
    fn sum<I: Iterator<Item = Self>>(ledgers: I) -> Self {
        ledgers.fold(Self::default(), |sum, ledger| Self {
            ticks: sum.ticks + ledger.ticks,
            sampled: sum.sampled + ledger.sampled,
            idle: sum.idle + ledger.idle,
            stolen: sum.stolen + ledger.stolen,
            lost: sum.lost + ledger.lost,
        })
    }
}

impl ClockLedger {
    /// Enters `ticks`.
    pub fn enter(&mut self, ticks: &Ticks) {
        self.ticks += ticks.total();
        self.sampled += u64::from(ticks.sample.is_some());
        self.idle += ticks.idle;
        self.stolen += ticks.stolen;
        self.lost += ticks.lost;
    }

    /// All fields with their names, in their order: first the ticks, then the parts that they add up to.
    pub fn fields(&self) -> [(&'static str, u64); 5] {
        [
            ("ticks", self.ticks),
            ("sampled", self.sampled),
            ("idle", self.idle),
            ("stolen", self.stolen),
            ("lost", self.lost),
        ]
    }

    /// The ticks that were entered since `earlier`, an earlier account of the same clock.
    ///
    /// # Panics
    /// If a count of `earlier` is the larger one.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            ticks: self.ticks - earlier.ticks,
            sampled: self.sampled - earlier.sampled,
            idle: self.idle - earlier.idle,
            stolen: self.stolen - earlier.stolen,
            lost: self.lost - earlier.lost,
        }
    }

    /// True when every tick is accounted for.
    pub fn balances(&self) -> bool {
        self.ticks == self.sampled + self.idle + self.stolen + self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_ledgers_is_by_count() {
        let earlier = ClockLedger {
            ticks: 10,
            sampled: 4,
            idle: 3,
            stolen: 2,
            lost: 1,
        };
        let more = ClockLedger {
            ticks: 15,
            sampled: 5,
            idle: 4,
            stolen: 3,
            lost: 3,
        };
        let later: ClockLedger = [earlier, more].into_iter().sum();
        assert_eq!(later.since(&earlier), more);
    }
}
