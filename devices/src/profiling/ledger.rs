//! Where every tick went: the accounts of the clock and of each of its consumers.

use super::Ticks;

/// The clock's own account, for one vCPU or summed over several:
/// `ticks == sampled + idle + stolen + lost` at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockLedger {
    /// All ticks since the clock first ran.
    pub ticks: u64,
    /// Ticks that were captured and handed over.
    pub sampled: u64,
    /// Ticks reckoned idle: the vCPU was halted and took no wake-up for them.
    pub idle: u64,
    /// Ticks on which the host didn't run the vCPU's thread.
    pub stolen: u64,
    /// Ticks missed for another reason, a full ring among them.
    pub lost: u64,
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

    /// True when every tick is accounted for.
    pub fn balances(&self) -> bool {
        self.ticks == self.sampled + self.idle + self.stolen + self.lost
    }
}

/// A consumer's account from its own start: `ticks == recorded + merged + ungathered + stolen +
/// lost + pending + discarded` at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerLedger {
    /// All ticks since the consumer started.
    pub ticks: u64,
    /// Ticks handed over as a record of their own.
    pub recorded: u64,
    /// Ticks handed over within a merge count.
    pub merged: u64,
    /// Ticks that no mode asked for.
    pub ungathered: u64,
    /// Ticks on which the host didn't run the vCPU's thread.
    pub stolen: u64,
    /// Ticks that the clock lost, and samples for which no buffer was free.
    pub lost: u64,
    /// Ticks in merge counts and buffers that haven't been handed over yet.
    pub pending: u64,
    /// Ticks thrown away at close.
    pub discarded: u64,
}

impl ConsumerLedger {
    /// True when every tick is accounted for.
    pub fn balances(&self) -> bool {
        self.ticks
            == self.recorded
                + self.merged
                + self.ungathered
                + self.stolen
                + self.lost
                + self.pending
                + self.discarded
    }
}
