//! One minor: its table, its state, its ledger.

use kvmprof_abi::prf::{STATUS_LOADED, STATUS_ON};

use super::table::Table;
use kvmprof_recording::{ConsumerLedger, Sample};

/// Consecutive ticks of one vCPU as a minor sees them. All members but `total` have only ticks that count for prf.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedTicks<'a> {
    /// All of the ticks.
    pub total: u64,
    pub idle: u64,
    pub stolen: u64,
    pub lost: u64,
    pub sample: Option<&'a Sample>,
}

/// The state of one minor.
#[derive(Debug, Default)]
pub(super) struct Minor {
    table: Option<Table>,
    on: bool,
    ledger: ConsumerLedger,
}

impl Minor {
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// The bits of `PRF_GETSTATUS`.
    pub(super) fn status(&self) -> u32 {
        let bit = |is: bool, bit: u32| if is { bit } else { 0 };
        bit(self.on, STATUS_ON) | bit(self.table.is_some(), STATUS_LOADED)
    }

    pub(super) fn addresses(&self) -> usize {
        self.table.as_ref().map_or(0, Table::len)
    }

    /// The ledger since it was last turned on.
    pub(super) fn ledger(&self) -> ConsumerLedger {
        self.ledger
    }

    /// Replaces the table. The minor must be off.
    pub(super) fn load(&mut self, table: Option<Table>) {
        self.table = table;
    }

    /// Turns it on or off. It must be loaded.
    pub(super) fn turn(&mut self, on: bool) {
        if on && !self.on {
            self.ledger = ConsumerLedger::default();
        }
        self.on = on;
    }

    /// Takes ticks, if it is on.
    pub(super) fn feed(&mut self, ticks: &CountedTicks<'_>) {
        let (true, Some(table)) = (self.on, &mut self.table) else {
            return;
        };
        let recorded = ticks.idle + u64::from(ticks.sample.is_some());
        self.ledger.ticks += ticks.total;
        self.ledger.recorded += recorded;
        self.ledger.stolen += ticks.stolen;
        self.ledger.lost += ticks.lost;
        self.ledger.ungathered += ticks.total - recorded - ticks.stolen - ticks.lost;
        table.count_idle(ticks.idle);
        if let Some(sample) = ticks.sample {
            table.count(sample);
        }
    }
}
