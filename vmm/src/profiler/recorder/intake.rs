//! Ticks on their way into blocks, and the account of them.

use std::time::{Duration, Instant};

use kvmprof_abi::pcs::Ledger;
use kvmprof_devices::profiling::Ticks;
use kvmprof_report::file::{Account, SampleBlock, SamplesEncoder};

/// A block is due after that time even if it isn't full, so that little is lost in a crash.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What became of the ticks of blocks that were handed over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivered {
    /// Samples that have arrived.
    pub samples: u64,
    /// Idle ticks that have arrived.
    pub idle: u64,
    /// Ticks that won't arrive any more.
    pub refused: u64,
}

/// Puts ticks into blocks.
#[derive(Debug)]
pub struct Intake {
    encoder: SamplesEncoder,
    begun: Instant,
    /// What the ticks so far were; those of blocks that found no room are lost.
    account: Account,
}

impl Intake {
    /// One that has seen nothing yet.
    pub fn new() -> Self {
        Self {
            encoder: SamplesEncoder::default(),
            begun: Instant::now(),
            account: Account::default(),
        }
    }

    /// Takes `ticks`, and the frames of their sample's stack. The result is a block that is full now.
    pub fn feed(&mut self, ticks: &Ticks, frames: &[u64]) -> Option<SampleBlock> {
        let account = &mut self.account;
        account.ticks += ticks.total();
        account.samples += u64::from(ticks.sample.is_some());
        account.idle += ticks.idle;
        account.stolen += ticks.stolen;
        account.lost += ticks.lost;
        self.encoder.push(ticks, frames);
        self.encoder.is_full().then(|| self.take())
    }

    /// A block that has waited for long enough.
    pub fn due(&mut self) -> Option<SampleBlock> {
        (self.begun.elapsed() >= MAX_AGE && !self.encoder.is_empty()).then(|| self.take())
    }

    /// What is left.
    pub fn take(&mut self) -> SampleBlock {
        self.begun = Instant::now();
        self.encoder.take()
    }

    /// There was no room for `block`: its samples are lost, and the next block says so.
    pub fn lose(&mut self, block: &SampleBlock) {
        let lost = block.samples + block.idle;
        self.account.samples -= block.samples;
        self.account.idle -= block.idle;
        self.account.lost += lost;
        let gap = Ticks {
            stolen: block.stolen,
            lost: block.lost + lost,
            ..Ticks::default()
        };
        self.encoder.push(&gap, &[]);
    }

    /// Where every tick went.
    pub fn account(&self) -> Account {
        self.account
    }

    /// The ledger, with what has been `delivered` so far: the rest is pending.
    pub fn ledger(&self, delivered: Delivered) -> Ledger {
        let account = &self.account;
        let Delivered {
            samples,
            idle,
            refused,
        } = delivered;
        Ledger {
            ticks: account.ticks,
            recorded: samples,
            merged: idle,
            ungathered: 0,
            stolen: account.stolen,
            lost: account.lost,
            pending: (account.samples + account.idle).saturating_sub(samples + idle + refused),
            discarded: refused,
        }
    }
}
