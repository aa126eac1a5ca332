//! Puts ticks into blocks, and keeps their account.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::file::{Account, Delivered, SampleBlock, SamplesEncoder, TasksEncoder};
use crate::tasks::TaskLook;
use crate::{IDLE_PID, Ticks};
use kvmprof_abi::pcs::Ledger;

/// The time after which a block is complete even if it isn't full, so that a crash loses little.
const MAX_AGE: Duration = Duration::from_secs(1);

/// When a block is complete that isn't full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockDue {
    /// After [`MAX_AGE`].
    Age(Instant),
    /// [`MAX_AGE`] after the next multiple of `interval`, in s of CLOCK_REALTIME: the number of the last one.
    Aligned { interval: u64, last: u64 },
}

impl BlockDue {
    /// A block that begins now.
    fn begin(&mut self) {
        match self {
            Self::Age(begun) => *begun = Instant::now(),
            Self::Aligned { interval, last } => *last = multiple(now(), *interval),
        }
    }

    fn is_now(&self) -> bool {
        match *self {
            Self::Age(begun) => begun.elapsed() >= MAX_AGE,
            // If the clock is set back, a block comes early.
            Self::Aligned { interval, last } => multiple(now(), interval) != last,
        }
    }
}

/// The time since 1970 by CLOCK_REALTIME.
fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// The number of multiples of `interval`, in s of CLOCK_REALTIME, until [`MAX_AGE`] before `now`.
fn multiple(now: Duration, interval: u64) -> u64 {
    now.saturating_sub(MAX_AGE).as_secs() / interval.max(1)
}

/// Puts ticks into blocks.
#[derive(Debug)]
pub struct Intake {
    encoder: SamplesEncoder,
    due: BlockDue,
    looks: TasksEncoder,
    looks_begun: Instant,
    /// The processes that are recorded; empty for all processes.
    pids: Vec<i32>,
    /// Ticks of other processes by vCPU: a run of them takes no more space than one.
    others: BTreeMap<u16, u64>,
    /// The account of all ticks so far. Those of blocks that didn't fit are lost.
    account: Account,
}

impl Intake {
    /// An intake without ticks, for all processes, or for `pids` if there are any.
    pub fn new(pids: &[i32]) -> Self {
        Self {
            encoder: SamplesEncoder::default(),
            due: BlockDue::Age(Instant::now()),
            looks: TasksEncoder::default(),
            looks_begun: Instant::now(),
            pids: pids.to_vec(),
            others: BTreeMap::new(),
            account: Account::default(),
        }
    }

    /// Has blocks come right after multiples of `interval`, in s of CLOCK_REALTIME, instead of once a second.
    pub fn set_interval(&mut self, interval: u32) {
        let interval = interval.into();
        let last = multiple(now(), interval);
        self.due = BlockDue::Aligned { interval, last };
    }

    /// Takes `ticks`, and the frames of their sample's stack. Returns a block if it is full now.
    pub fn feed(&mut self, ticks: &Ticks, frames: &[u64]) -> Option<SampleBlock> {
        let mut ticks = self.wanted(ticks);
        self.account.enter(&ticks);
        if ticks.total() == ticks.ungathered {
            *self.others.entry(ticks.vcpu).or_default() += ticks.ungathered;
        } else {
            ticks.ungathered += self.others.remove(&ticks.vcpu).unwrap_or_default();
            self.encoder.push(&ticks, frames);
        }
        self.encoder.is_full().then(|| self.take())
    }

    /// Adds a look at the guest's tasks. Returns a block of looks if it is full now.
    pub fn feed_look(&mut self, look: &TaskLook) -> Option<Vec<u8>> {
        if self.looks.is_empty() {
            self.looks_begun = Instant::now();
        }
        let pids = &self.pids;
        self.looks
            .push(look, |pid| pids.is_empty() || pids.contains(&pid));
        self.looks.is_full().then(|| self.looks.take())
    }

    /// A block of looks if it has waited for long enough.
    pub fn due_looks(&mut self) -> Option<Vec<u8>> {
        (self.looks_begun.elapsed() >= MAX_AGE).then(|| self.take_looks())?
    }

    /// The remaining looks, if there are any.
    pub fn take_looks(&mut self) -> Option<Vec<u8>> {
        (!self.looks.is_empty()).then(|| self.looks.take())
    }

    /// `ticks` without those of processes that aren't recorded. The process of stolen and lost ticks isn't known: they
    /// stay.
    fn wanted(&self, ticks: &Ticks) -> Ticks {
        let mut wanted = *ticks;
        if self.pids.is_empty() {
            return wanted;
        }
        if !self.pids.contains(&IDLE_PID) {
            wanted.ungathered += wanted.idle;
            wanted.idle = 0;
        }
        if wanted
            .sample
            .is_some_and(|sample| !self.pids.contains(&sample.pid))
        {
            wanted.ungathered += 1;
            wanted.sample = None;
        }
        wanted
    }

    /// A block of ticks if it has waited for long enough.
    pub fn due(&mut self) -> Option<SampleBlock> {
        let has_some = !self.encoder.is_empty() || !self.others.is_empty();
        if !self.due.is_now() {
            return None;
        }
        if has_some {
            return Some(self.take());
        }
        // The first tick of what has waited for a second goes at once; at a multiple of the interval there was none.
        if matches!(self.due, BlockDue::Aligned { .. }) {
            self.due.begin();
        }
        None
    }

    /// The remaining ticks.
    pub fn take(&mut self) -> SampleBlock {
        self.due.begin();
        for (vcpu, ungathered) in std::mem::take(&mut self.others) {
            let others = Ticks {
                vcpu,
                ungathered,
                ..Ticks::default()
            };
            self.encoder.push(&others, &[]);
        }
        self.encoder.take()
    }

    /// Counts the samples of `block`, which didn't fit into the sink, as lost. The next block has them as lost ticks.
    pub fn lose(&mut self, block: &SampleBlock) {
        let lost = block.samples + block.idle;
        self.account.samples -= block.samples;
        self.account.idle -= block.idle;
        self.account.lost += lost;
        let gap = Ticks {
            stolen: block.stolen,
            lost: block.lost + lost,
            ungathered: block.ungathered,
            ..Ticks::default()
        };
        self.encoder.push(&gap, &[]);
    }

    /// The account of all ticks.
    pub fn account(&self) -> Account {
        self.account
    }

    /// The ledger, if `delivered` has been delivered so far. The rest is pending.
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
            ungathered: account.ungathered,
            stolen: account.stolen,
            lost: account.lost,
            pending: (account.samples + account.idle).saturating_sub(samples + idle + refused),
            discarded: refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Sample;
    use crate::file::decode_samples;
    use proptest::prelude::*;

    use super::*;

    fn ticks() -> impl Strategy<Value = Ticks> {
        let sample = prop::option::of((-1..4_i32).prop_map(|pid| Sample {
            pid,
            ..Sample::default()
        }));
        (0..2_u16, 0..3_u64, 0..3_u64, 0..3_u64, sample).prop_map(
            |(vcpu, idle, stolen, lost, sample)| Ticks {
                vcpu,
                idle,
                stolen,
                lost,
                ungathered: 0,
                sample: sample.map(|sample| Sample { vcpu, ..sample }),
            },
        )
    }

    proptest! {
        /// The blocks have what was requested, and each tick is accounted for, also those of blocks beyond the limit.
        #[test]
        fn every_tick_of_other_processes_is_counted(
            all in prop::collection::vec(ticks(), 0..60),
            pids in prop::collection::vec(-1..4_i32, 0..3),
            taken in prop::collection::vec(any::<bool>(), 60),
            refused in any::<bool>(),
        ) {
            let wants = |pid: i32| pids.is_empty() || pids.contains(&pid);
            let mut intake = Intake::new(&pids);
            let (mut blocks, mut lost_room) = (Vec::new(), false);
            for (ticks, is_taken) in all.iter().zip(taken) {
                prop_assert!(intake.feed(ticks, &[]).is_none());
                let ledger = intake.ledger(Delivered::default());
                prop_assert!(ledger.balances());
                if is_taken {
                    let block = intake.take();
                    if refused && !lost_room {
                        lost_room = true;
                        intake.lose(&block);
                    } else {
                        blocks.push(block);
                    }
                }
            }
            blocks.push(intake.take());
            let (mut sum, mut read) = (Account::default(), Vec::new());
            for block in &blocks {
                decode_samples(&block.bytes, |ticks, _| {
                    sum.enter(ticks);
                    read.extend(ticks.sample.map(|sample| (sample.vcpu, sample.pid)));
                }).unwrap();
            }
            prop_assert_eq!(sum, intake.account());
            prop_assert!(sum.balances());
            prop_assert_eq!(sum.ticks, all.iter().map(Ticks::total).sum::<u64>());
            prop_assert!(read.iter().all(|(_, pid)| wants(*pid)));
            let of_others = |ticks: &Ticks| {
                u64::from(ticks.sample.is_some_and(|sample| !wants(sample.pid)))
                    + if wants(IDLE_PID) { 0 } else { ticks.idle }
            };
            prop_assert_eq!(sum.ungathered, all.iter().map(of_others).sum::<u64>());
            if !lost_room {
                let samples = all.iter().filter_map(|ticks| ticks.sample);
                let wanted = samples.filter(|sample| wants(sample.pid));
                let wanted = wanted.map(|sample| (sample.vcpu, sample.pid));
                prop_assert_eq!(read, wanted.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_block_is_due_a_second_after_each_multiple() {
        let due = |seconds: f64, interval| multiple(Duration::from_secs_f64(seconds), interval);
        assert_eq!([0.0, 0.9, 10.9].map(|now| due(now, 10)), [0; 3]);
        assert_eq!([11.0, 20.9].map(|now| due(now, 10)), [1; 2]);
        assert_eq!([1.0, 1.9, 2.0].map(|now| due(now, 1)), [0, 0, 1]);
    }

    #[test]
    fn consecutive_other_ticks_take_one_entry() {
        let mut intake = Intake::new(&[7]);
        let other = Sample::default().into();
        for _ in 0..10_000 {
            assert!(intake.feed(&other, &[]).is_none());
        }
        let block = intake.take();
        assert_eq!((block.samples, block.ungathered), (0, 10_000));
        assert!(block.bytes.len() < 8);
    }
}
