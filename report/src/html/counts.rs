//! Ticks by bin of time, thread, vCPU, mode and stack.

use std::collections::{BTreeMap, HashMap, HashSet};

use foldhash::fast::RandomState;
use kvmprof_recording::Ticks;
use kvmprof_recording::file::RecordingInfo;

use super::runners::Runners;
use super::timeline::{BINS, Bins};
use crate::profile::{Selected, Selection, Watcher};
use crate::symbolize::Resolver;

/// Number of cells at which they are merged while a recording is read.
const MAX_CELLS: usize = 2_000_000;
/// Number of bins that aren't made fewer to save cells.
const LEAST_BINS: usize = 64;

/// Stands for rare stacks.
pub const RARE: u32 = u32::MAX;

/// What samples of a bin are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The vCPU.
    pub vcpu: u16,
    /// The mode, by [`kvmprof_recording::Mode::index`].
    pub mode: u8,
    /// The thread, by its number in [`Runners`].
    pub runner: u32,
    /// The stack, by its number in [`crate::profile::StackCounts`], or [`RARE`]. Once the counts are finished, its node.
    pub stack: u32,
}

/// The samples of a bin.
type Cells = HashMap<Cell, u32, RandomState>;

/// Ticks of a vCPU without a sample: idle, stolen, lost, ungathered.
pub type Missed = [u64; 4];

/// All ticks that were selected of a recording.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    bins: Bins,
    runners: Runners,
    /// By bin: a recording is more or less in the order of time, so that few are in use at a time.
    cells: Vec<Cells>,
    /// How many cells there are.
    length: usize,
    missed: BTreeMap<(u16, u16), Missed>,
    /// Whether a stack is rare, by its number; those beyond the end aren't.
    rare: Vec<bool>,
}

impl Watcher for Counts {
    fn begin(&mut self, info: &RecordingInfo, selection: &Selection, _: &Resolver) {
        *self = Self {
            bins: Bins::new(info, selection),
            cells: vec![Cells::default(); BINS],
            ..Self::default()
        };
    }

    fn take(&mut self, selected: &Selected) {
        for _ in 0..self.bins.doublings_for(selected.spread.until()) {
            self.halve();
        }
        self.add_missed(selected);
        if let Some(sample) = &selected.sample {
            let stack = selected.stack.unwrap_or(RARE);
            let is_rare = self.rare.get(stack as usize).is_some_and(|rare| *rare);
            let cell = Cell {
                vcpu: sample.vcpu,
                // There are four modes.
                mode: u8::try_from(sample.mode.index()).unwrap_or(u8::MAX),
                runner: self.runners.of(sample),
                stack: if is_rare { RARE } else { stack },
            };
            let bin = self.bins.bin_of(sample.time);
            if let Some(cells) = self.cells.get_mut(bin) {
                let before = cells.len();
                add(cells, cell, 1);
                self.length += cells.len() - before;
            }
        }
        if self.length > MAX_CELLS {
            self.shrink();
        }
    }
}

impl Counts {
    fn add_missed(&mut self, selected: &Selected) {
        let bins = self.bins;
        let missed = &mut self.missed;
        let each = |bin: usize, ticks: &Ticks| {
            let parts = [ticks.idle, ticks.stolen, ticks.lost, ticks.ungathered];
            if parts != Missed::default() {
                // There are few bins.
                let bin = u16::try_from(bin).unwrap_or(u16::MAX);
                add_parts(missed.entry((bin, ticks.vcpu)).or_default(), parts);
            }
        };
        let spread = &selected.spread;
        spread.share(|time| bins.bin_of(time), |bin| bins.end_of(bin), each);
    }

    /// Makes one bin of two.
    fn halve(&mut self) {
        for bin in 0..self.cells.len() {
            let mut own = std::mem::take(&mut self.cells[bin]);
            let into = &mut self.cells[bin / 2];
            if into.len() < own.len() {
                std::mem::swap(into, &mut own);
            }
            own.into_iter()
                .for_each(|(cell, count)| add(into, cell, count));
        }
        self.measure();
        self.halve_missed();
    }

    fn halve_missed(&mut self) {
        for ((bin, vcpu), parts) in std::mem::take(&mut self.missed) {
            add_parts(self.missed.entry((bin / 2, vcpu)).or_default(), parts);
        }
    }

    fn measure(&mut self) {
        self.length = self.cells.iter().map(HashMap::len).sum();
    }

    /// Halves the number of cells: by fewer bins as long as there are many, then by fewer stacks.
    fn shrink(&mut self) {
        while self.length > MAX_CELLS / 2 && self.bins.used() > LEAST_BINS {
            self.bins.double();
            self.halve();
        }
        if self.length <= MAX_CELLS / 2 {
            return;
        }
        let stacks = self.cells.iter().flat_map(Cells::iter);
        let stacks = stacks.map(|(cell, count)| (cell.stack, *count));
        for stack in rarest(stacks, self.length - MAX_CELLS / 2) {
            let index = stack as usize;
            if index >= self.rare.len() {
                self.rare.resize(index + 1, false);
            }
            self.rare[index] = true;
        }
        for cells in &mut self.cells {
            let mut rare = Vec::new();
            cells.retain(|cell, count| {
                let is_rare = self.rare.get(cell.stack as usize) == Some(&true);
                if is_rare {
                    rare.push((*cell, *count));
                }
                !is_rare
            });
            for (cell, count) in rare {
                let stack = RARE;
                add(cells, Cell { stack, ..cell }, count);
            }
            cells.shrink_to_fit();
        }
        self.measure();
    }

    /// Hands over the cells with their bins and counts, in order, at most about `most` of them: if there are more, first the
    /// bins become fewer, then the stacks. `node_of` gives each stack's node; `rare` is that of the rare ones.
    pub fn finish(
        &mut self,
        most: usize,
        node_of: impl Fn(u32) -> u32,
        rare: u32,
    ) -> Vec<(u16, Cell, u32)> {
        let mut all = Vec::with_capacity(self.length);
        for (bin, cells) in (0..).zip(std::mem::take(&mut self.cells)) {
            all.extend(cells.into_iter().map(|(cell, count)| {
                let stack = node_of(cell.stack);
                (bin, Cell { stack, ..cell }, count)
            }));
        }
        merge(&mut all);
        while all.len() > most && self.bins.used() > LEAST_BINS {
            self.bins.double();
            self.halve_missed();
            all.iter_mut().for_each(|(bin, ..)| *bin /= 2);
            merge(&mut all);
        }
        if all.len() > most {
            let stacks = all.iter().map(|(_, cell, count)| (cell.stack, *count));
            let rarest = rarest(stacks, all.len() - most).into_iter();
            let is_rare: HashSet<u32, RandomState> = rarest.collect();
            for (_, cell, _) in &mut all {
                if is_rare.contains(&cell.stack) {
                    cell.stack = rare;
                }
            }
            merge(&mut all);
        }
        all
    }

    /// The bins.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// The threads.
    pub fn runners(&self) -> &Runners {
        &self.runners
    }

    /// The number of the thread of idle ticks without a sample, if there are any.
    pub fn idle_runner(&mut self) -> Option<u32> {
        let is_there = self.missed.values().any(|[idle, ..]| *idle > 0);
        is_there.then(|| self.runners.idle())
    }

    /// Ticks without a sample, by bin and vCPU.
    pub fn missed(&self) -> &BTreeMap<(u16, u16), Missed> {
        &self.missed
    }
}

/// Sorts cells, and makes one of those that are the same.
fn merge(all: &mut Vec<(u16, Cell, u32)>) {
    all.sort_unstable_by_key(|(bin, cell, _)| (*bin, *cell));
    all.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0 && next.1 == kept.1;
        if is_same {
            kept.2 = kept.2.saturating_add(next.2);
        }
        is_same
    });
}

/// The stacks with the fewest samples: as many as have `excess` cells together. `cells` are those of all stacks.
fn rarest(cells: impl Iterator<Item = (u32, u32)>, excess: usize) -> Vec<u32> {
    // By stack, the samples and the cells.
    let mut sums: HashMap<u32, (u64, usize), RandomState> = HashMap::default();
    for (stack, count) in cells {
        let (samples, cells) = sums.entry(stack).or_default();
        *samples = samples.saturating_add(count.into());
        *cells += 1;
    }
    sums.remove(&RARE);
    let sums = sums.into_iter();
    let mut sums: Vec<(u64, u32, usize)> = sums
        .map(|(stack, (samples, cells))| (samples, stack, cells))
        .collect();
    sums.sort_unstable();
    let mut found = 0_usize;
    sums.into_iter()
        .take_while(move |(_, _, cells)| {
            let is_wanted = found < excess;
            found += cells;
            is_wanted
        })
        .map(|(_, stack, _)| stack)
        .collect()
}

fn add(cells: &mut Cells, cell: Cell, count: u32) {
    let sum = cells.entry(cell).or_default();
    *sum = sum.saturating_add(count);
}

fn add_parts(sums: &mut Missed, parts: Missed) {
    for (sum, part) in sums.iter_mut().zip(parts) {
        *sum = sum.saturating_add(part);
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::{COMM_LENGTH, Sample};

    use super::*;
    use crate::profile::Selector;

    /// Counts of samples of these times (in ms), threads and stacks, a vCPU's in order.
    fn counts(samples: impl Iterator<Item = (u64, i32, u32)>) -> Counts {
        let info = RecordingInfo {
            hz: 1000,
            ..RecordingInfo::default()
        };
        let selection = Selection::default();
        let mut counts = Counts::default();
        counts.begin(&info, &selection, &Resolver::default());
        let mut selector = Selector::new(&info, selection.time);
        for (ms, tid, stack) in samples {
            let sample = Sample {
                time: ms * 1_000_000,
                pid: 7,
                tid,
                comm: [b'a'; COMM_LENGTH],
                ..Sample::default()
            };
            let ticks = Ticks {
                sample: Some(sample),
                ..Ticks::default()
            };
            counts.take(&Selected {
                spread: selector.spread(&ticks),
                sample: Some(sample),
                stack: Some(stack),
            });
        }
        counts
    }

    fn samples(cells: &[(u16, Cell, u32)]) -> u64 {
        cells.iter().map(|(_, _, count)| u64::from(*count)).sum()
    }

    #[test]
    fn a_long_recording_of_endless_stacks_keeps_its_sums() {
        // As many different stacks as samples, but for one.
        const ALL: u32 = 3_000_000;
        let one = |number: u32| if number.is_multiple_of(3) { 0 } else { number };
        let mut counts = counts((0..ALL).map(|number| (number.into(), 7, one(number))));
        assert!(counts.length <= MAX_CELLS, "{}", counts.length);
        assert!(counts.bins.used() > LEAST_BINS / 2);
        let cells = counts.finish(10_000, |stack| stack, RARE);
        assert!(cells.len() <= 10_000 + BINS, "{}", cells.len());
        assert_eq!(samples(&cells), u64::from(ALL));
        let frequent = cells.iter().filter(|(_, cell, _)| cell.stack == 0);
        let frequent: u64 = frequent.map(|(_, _, count)| u64::from(*count)).sum();
        assert_eq!(frequent, u64::from(ALL / 3));
    }

    #[test]
    fn stacks_of_one_node_are_one() {
        let mut counts = counts([(1, 7, 4), (2, 7, 5), (3, 8, 5), (9, 7, 4)].into_iter());
        let cells = counts.finish(100, |_| 1, 2);
        let found: Vec<(u16, u32, u32)> = cells
            .iter()
            .map(|(bin, cell, count)| (*bin, cell.stack, *count))
            .collect();
        assert_eq!(found, [(0, 1, 2), (0, 1, 1), (1, 1, 1)]);
    }
}
