//! The counts of all recordings of a page, in bins that begin with each recording.

use std::collections::{BTreeMap, HashSet};

use foldhash::fast::RandomState;

use super::counts::{Cell, Counts, LEAST_BINS, Missed, add_parts, rarest};
use super::runners::{Runner, Runners};
use super::timeline::Bins;

/// The counts of all recordings.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The bins. Their times are relative to the begin of each recording.
    pub bins: Bins,
    /// The threads of all recordings.
    pub runners: Runners,
    /// Bins, cells with the nodes of their stacks, and ticks, in order.
    pub cells: Vec<(u16, Cell, u32)>,
    /// Ticks without a sample by bin, recording and vCPU.
    pub missed: BTreeMap<(u16, u32, u16), Missed>,
    /// For each recording, the thread of its idle ticks without a sample, if there are any.
    pub idle: Vec<Option<u32>>,
}

impl Merged {
    /// Merges `all` counts into about `most` cells at most: if there are more, it merges first bins, then rare stacks.
    /// `node_of` returns the node of a recording's stack; `rare` is the node of rare stacks.
    pub fn new(
        all: Vec<Counts>,
        most: usize,
        node_of: impl Fn(usize, u32) -> u32,
        rare: u32,
    ) -> Self {
        let bins = Bins::common(all.iter().map(|counts| &counts.bins));
        let mut merged = Self {
            bins,
            ..Self::default()
        };
        for (number, counts) in all.into_iter().enumerate() {
            merged.add(number, counts, |stack| node_of(number, stack));
        }
        sum_equal(&mut merged.cells);
        merged.limit(most, rare);
        merged
    }

    fn add(&mut self, number: usize, counts: Counts, node_of: impl Fn(u32) -> u32) {
        let recording = u32::try_from(number).unwrap_or(u32::MAX);
        let factor = self.bins.width() / counts.bins.width().max(1);
        let bin_of = |bin: usize| {
            let bin = bin as u64 / factor.max(1);
            // There are few bins.
            u16::try_from(bin).unwrap_or(u16::MAX)
        };
        let runners = counts.runners.all().iter().map(|runner| {
            self.runners.add(&Runner {
                recording,
                ..*runner
            })
        });
        let runners: Vec<u32> = runners.collect();
        for (bin, cells) in counts.cells.into_iter().enumerate() {
            self.cells.extend(cells.into_iter().map(|(cell, count)| {
                let cell = Cell {
                    runner: runners.get(cell.runner as usize).copied().unwrap_or(0),
                    stack: node_of(cell.stack),
                    ..cell
                };
                (bin_of(bin), cell, count)
            }));
        }
        let mut has_idle = false;
        for ((bin, vcpu), parts) in counts.missed {
            has_idle |= parts[0] > 0;
            let key = (bin_of(bin.into()), recording, vcpu);
            add_parts(self.missed.entry(key).or_default(), parts);
        }
        self.idle
            .push(has_idle.then(|| self.runners.idle(recording)));
    }

    fn limit(&mut self, most: usize, rare: u32) {
        while self.cells.len() > most && self.bins.used() > LEAST_BINS {
            self.bins.widen(2);
            for ((bin, recording, vcpu), parts) in std::mem::take(&mut self.missed) {
                let key = (bin / 2, recording, vcpu);
                add_parts(self.missed.entry(key).or_default(), parts);
            }
            self.cells.iter_mut().for_each(|(bin, ..)| *bin /= 2);
            sum_equal(&mut self.cells);
        }
        if self.cells.len() > most {
            let stacks = self.cells.iter();
            let stacks = stacks.map(|(_, cell, count)| (cell.stack, *count));
            let rarest = rarest(stacks, self.cells.len() - most).into_iter();
            let is_rare: HashSet<u32, RandomState> = rarest.collect();
            for (_, cell, _) in &mut self.cells {
                if is_rare.contains(&cell.stack) {
                    cell.stack = rare;
                }
            }
            sum_equal(&mut self.cells);
        }
    }
}

/// Sorts cells, and merges those with the same key.
fn sum_equal(all: &mut Vec<(u16, Cell, u32)>) {
    all.sort_unstable_by_key(|(bin, cell, _)| (*bin, *cell));
    all.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0 && next.1 == kept.1;
        if is_same {
            kept.2 = kept.2.saturating_add(next.2);
        }
        is_same
    });
}
