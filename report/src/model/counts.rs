//! Ticks by bin of time, thread, vCPU, mode and stack.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use kvmprof_recording::Ticks;
use kvmprof_recording::file::RecordingInfo;

use super::timeline::{BINS, Bins};
use super::{Selected, Selection, Watcher};
use crate::symbolize::Resolver;

/// Number of cells at which cells are merged while a recording is read.
const MAX_CELLS: usize = 2_000_000;
/// Number of bins up to which bins aren't merged to save cells.
pub const LEAST_BINS: usize = 64;

/// Stands for rare stacks.
pub const RARE: u32 = u32::MAX;
/// Stands for threads without numbers of their own, and how many have one.
pub const OTHERS: u32 = u32::MAX;
pub const MAX_THREADS: u32 = 20_000;

/// The key by which samples of a bin are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The vCPU.
    pub vcpu: u16,
    /// The mode, by [`kvmprof_recording::Mode::index`].
    pub mode: u8,
    /// The thread, by its number in [`super::Profile::threads`], or [`OTHERS`]. In a page of several recordings, its number on the page.
    pub thread: u32,
    /// The stack, by its number in [`super::Profile::stacks`], or [`RARE`]. In a page of several recordings, its node.
    pub stack: u32,
}

/// The samples of a bin.
pub(crate) type Cells = HashMap<Cell, u32, RandomState>;

/// Ticks of a vCPU without a sample: idle, stolen, lost, ungathered.
pub type Missed = [u64; 4];

/// All selected ticks of a recording.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub(crate) bins: Bins,
    /// The cells by bin. A recording is roughly in the order of time, so that few bins are in use at a time.
    pub(crate) cells: Vec<Cells>,
    /// The number of cells.
    length: usize,
    pub(crate) missed: BTreeMap<(u16, u16), Missed>,
    /// Whether a stack is rare, by its number; those beyond the end aren't.
    rare: Vec<bool>,
}

impl Watcher for Counts {
    fn begin(&mut self, _: usize, info: &RecordingInfo, selection: &Selection, _: &Resolver) {
        *self = Self {
            bins: Bins::new(info, selection),
            cells: vec![Cells::default(); BINS],
            ..Self::default()
        };
    }

    fn take(&mut self, selected: &Selected) {
        for _ in 0..self.bins.doublings_for(selected.spread.until()) {
            self.merge_bins(2);
        }
        self.add_missed(selected);
        if let Some(sample) = &selected.sample {
            let stack = selected.stack.unwrap_or(RARE);
            let is_rare = self.rare.get(stack as usize).is_some_and(|rare| *rare);
            let cell = Cell {
                vcpu: sample.vcpu,
                // There are four modes.
                mode: u8::try_from(sample.mode.index()).unwrap_or(u8::MAX),
                thread: (selected.thread)
                    .filter(|thread| *thread < MAX_THREADS)
                    .unwrap_or(OTHERS),
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

/// Ticks of a block of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTicks {
    /// The block.
    pub block: usize,
    /// The ticks.
    pub ticks: u64,
}

/// The ticks of a recording by stack and block of time.
#[derive(Clone, Debug, Default)]
pub struct Divided {
    /// The number of blocks.
    pub blocks: usize,
    /// All ticks that were sampled or idle.
    pub all: Vec<BlockTicks>,
    /// Idle ticks without a sample.
    pub idle: Vec<BlockTicks>,
    /// The samples of the stacks that aren't [`RARE`], and where those of each begin.
    parts: Vec<BlockTicks>,
    begins: Vec<usize>,
}

impl Divided {
    /// The samples of the stack with this number in [`super::Profile::stacks`].
    pub fn of(&self, stack: usize) -> &[BlockTicks] {
        let end = self.begins.get(stack + 1).copied();
        let begin = self.begins.get(stack).copied();
        let range = begin.unwrap_or(0)..end.unwrap_or(0);
        self.parts.get(range).unwrap_or_default()
    }
}

impl Counts {
    /// The time of the last tick, in ns after the start of the selected time.
    pub(crate) fn length_ns(&self) -> u64 {
        self.bins.length()
    }

    /// The ticks in at most `most` blocks of equal length, but for the last one.
    pub fn divided(&self, most: usize) -> Divided {
        let width = self.bins.used().div_ceil(most.max(1)).max(1);
        let mut all = vec![0_u64; self.bins.used().div_ceil(width)];
        let mut idle = all.clone();
        // A recording may have a sample behind its last tick.
        let last = all.len().saturating_sub(1);
        let block_of = |bin: usize| (bin / width).min(last);
        for ((bin, _), [ticks, ..]) in &self.missed {
            if let Some(sum) = idle.get_mut(block_of((*bin).into())) {
                *sum = sum.saturating_add(*ticks);
            }
        }
        let mut samples: Vec<(u32, u16, u32)> = Vec::with_capacity(self.length);
        for (bin, cells) in self.cells.iter().enumerate() {
            // There are few bins.
            let block = u16::try_from(block_of(bin)).unwrap_or(u16::MAX);
            let cells = cells.iter();
            samples.extend(cells.map(|(cell, count)| (cell.stack, block, *count)));
        }
        samples.sort_unstable();
        let mut divided = Divided::default();
        for equal in samples.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let [(stack, block, _), ..] = *equal else {
                continue;
            };
            let block = usize::from(block);
            let ticks = equal.iter().map(|(.., count)| u64::from(*count)).sum();
            if let Some(sum) = all.get_mut(block) {
                *sum = sum.saturating_add(ticks);
            }
            if stack != RARE {
                // Numbers of stacks have hardly any gaps.
                let stacks = (stack as usize).saturating_add(1);
                let begins = stacks.max(divided.begins.len());
                divided.begins.resize(begins, divided.parts.len());
                divided.parts.push(BlockTicks { block, ticks });
            }
        }
        divided.begins.push(divided.parts.len());
        divided.blocks = all.len();
        let sums = all
            .iter()
            .zip(&idle)
            .map(|(samples, idle)| samples.saturating_add(*idle));
        divided.all = parts(sums);
        divided.idle = parts(idle.iter().copied());
        divided
    }

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

    /// Merges this number of bins into one. The timeline has the new width already.
    fn merge_bins(&mut self, bins: usize) {
        for bin in 0..self.cells.len() {
            let mut own = std::mem::take(&mut self.cells[bin]);
            let into = &mut self.cells[bin / bins];
            if into.len() < own.len() {
                std::mem::swap(into, &mut own);
            }
            own.into_iter()
                .for_each(|(cell, count)| add(into, cell, count));
        }
        self.measure();
        for ((bin, vcpu), parts) in std::mem::take(&mut self.missed) {
            let bin = usize::from(bin) / bins;
            // There are few bins.
            let bin = u16::try_from(bin).unwrap_or(u16::MAX);
            add_parts(self.missed.entry((bin, vcpu)).or_default(), parts);
        }
    }

    fn measure(&mut self) {
        self.length = self.cells.iter().map(HashMap::len).sum();
    }

    /// Halves the number of cells: merges bins as long as there are many, then the rarest stacks.
    fn shrink(&mut self) {
        while self.length > MAX_CELLS / 2 && self.bins.used() > LEAST_BINS {
            self.bins.widen(2);
            self.merge_bins(2);
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
}

/// The blocks that have ticks.
fn parts(ticks: impl Iterator<Item = u64>) -> Vec<BlockTicks> {
    let parts = ticks
        .enumerate()
        .map(|(block, ticks)| BlockTicks { block, ticks });
    parts.filter(|part| part.ticks > 0).collect()
}

/// The stacks with the fewest samples that have `excess` cells together. `cells` has the cells of all stacks.
pub fn rarest(cells: impl Iterator<Item = (u32, u32)>, excess: usize) -> Vec<u32> {
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

pub fn add_parts(sums: &mut Missed, parts: Missed) {
    for (sum, part) in sums.iter_mut().zip(parts) {
        *sum = sum.saturating_add(part);
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::{COMM_LENGTH, Sample};

    use super::*;
    use crate::html::Merged;
    use crate::profile::{Profile, Selector, Thread};

    /// Counts of samples of these times (in ms), threads and stacks, a vCPU's in order.
    fn counts(samples: impl Iterator<Item = (u64, i32, u32)>) -> Counts {
        let info = RecordingInfo {
            hz: 1000,
            ..RecordingInfo::default()
        };
        let selection = Selection::default();
        let mut counts = Counts::default();
        counts.begin(0, &info, &selection, &Resolver::default());
        let mut selector = Selector::new(&info, &selection);
        for (ms, tid, stack) in samples {
            let sample = Sample {
                time: ms * 1_000_000,
                pid: 7,
                tid,
                comm: [b'a'; COMM_LENGTH],
                ..Sample::default()
            };
            let ticks = sample.into();
            counts.take(&Selected {
                spread: selector.spread(&ticks),
                sample: Some(sample),
                stack: Some(stack),
                thread: Some(u32::try_from(tid).unwrap() - 7),
            });
        }
        counts
    }

    /// A recording with the threads of these samples.
    fn two_threads() -> Profile {
        let thread = |tid| Thread {
            pid: 7,
            tid,
            ..Thread::default()
        };
        Profile {
            threads: vec![thread(7), thread(8)],
            ..Profile::default()
        }
    }

    fn samples(cells: &[(u16, Cell, u32)]) -> u64 {
        cells.iter().map(|(_, _, count)| u64::from(*count)).sum()
    }

    #[test]
    fn a_long_recording_of_endless_stacks_keeps_its_sums() {
        // As many different stacks as samples, except for one.
        const ALL: u32 = 3_000_000;
        let one = |number: u32| if number.is_multiple_of(3) { 0 } else { number };
        let counts = counts((0..ALL).map(|number| (number.into(), 7, one(number))));
        assert!(counts.length <= MAX_CELLS, "{}", counts.length);
        assert!(counts.bins.used() > LEAST_BINS / 2);
        let cells = Merged::new(&two_threads(), vec![counts], 10_000, |_, stack| stack, RARE).cells;
        assert!(cells.len() <= 10_000 + BINS, "{}", cells.len());
        assert_eq!(samples(&cells), u64::from(ALL));
        let frequent = cells.iter().filter(|(_, cell, _)| cell.stack == 0);
        let frequent: u64 = frequent.map(|(_, _, count)| u64::from(*count)).sum();
        assert_eq!(frequent, u64::from(ALL / 3));
    }

    #[test]
    fn blocks_have_the_ticks_of_their_time() {
        let samples = (0..1000).map(|ms| (ms, 7, u32::from(ms >= 750)));
        let mut counts = counts(samples.chain([(999, 7, 9)]));
        let divided = counts.divided(4);
        assert_eq!(divided.blocks, 4);
        let ticks = |parts: &[BlockTicks]| -> Vec<(usize, u64)> {
            let parts = parts.iter().map(|part| (part.block, part.ticks));
            parts.collect()
        };
        assert_eq!(ticks(divided.of(0)), [(0, 250), (1, 250), (2, 250)]);
        assert_eq!(ticks(divided.of(1)), [(3, 250)]);
        assert_eq!(ticks(divided.of(9)), [(3, 1)]);
        assert_eq!(divided.of(5).len() + divided.of(10).len(), 0);
        let all: u64 = divided.all.iter().map(|part| part.ticks).sum();
        assert_eq!(all, 1001);
        // As in a hostile recording.
        let cell = Cell {
            vcpu: 0,
            mode: 0,
            thread: 0,
            stack: 2,
        };
        counts.cells[BINS - 1].insert(cell, 5);
        assert_eq!(ticks(counts.divided(4).of(2)), [(3, 5)]);
    }

    #[test]
    fn stacks_of_one_node_are_one() {
        let counts = counts([(1, 7, 4), (2, 7, 5), (3, 8, 5), (9, 7, 4)].into_iter());
        let cells = Merged::new(&two_threads(), vec![counts], 100, |_, _| 1, 2).cells;
        let found = cells
            .iter()
            .map(|(bin, cell, count)| (*bin, cell.stack, *count));
        assert_eq!(found.collect::<Vec<_>>(), [(0, 1, 2), (0, 1, 1), (1, 1, 1)]);
    }
}
