//! The counts of all recordings of a page, in bins that begin with each recording.

use std::collections::{BTreeMap, HashSet};

use foldhash::fast::RandomState;
use kvmprof_recording::IDLE_PID;

use crate::model::counts::{
    Cell, Counts, LEAST_BINS, MAX_THREADS, Missed, OTHERS, add_parts, rarest,
};
use crate::model::timeline::Bins;
use crate::profile::{Profile, Thread};

/// A thread of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageThread {
    /// The number of its recording.
    pub recording: u32,
    /// The thread; `None` for all that aren't distinguished.
    pub thread: Option<Thread>,
}

/// The counts of all recordings.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The bins. Their times are relative to the start of each recording.
    pub bins: Bins,
    /// The threads of all recordings that have ticks.
    pub threads: Vec<PageThread>,
    /// Bins, cells with the nodes of their stacks, and ticks, in order.
    pub cells: Vec<(u16, Cell, u32)>,
    /// Ticks without a sample by bin, recording and vCPU.
    pub missed: BTreeMap<(u16, u32, u16), Missed>,
    /// For each recording, the thread of its idle ticks without a sample, if there are any.
    pub idle: Vec<Option<u32>>,
}

impl Merged {
    /// Merges `all` counts of the recordings of `profile` into about `most` cells at most: if there are more, it merges first bins, then rare stacks.
    /// `node_of` returns the node of a recording's stack; `rare` is the node of rare stacks.
    pub fn new(
        profile: &Profile,
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
        for ((number, recording), counts) in profile.recordings().enumerate().zip(all) {
            merged.add(number, recording, counts, |stack| node_of(number, stack));
        }
        sum_equal(&mut merged.cells);
        merged.limit(most, rare);
        merged
    }

    fn add(
        &mut self,
        number: usize,
        profile: &Profile,
        counts: Counts,
        node_of: impl Fn(u32) -> u32,
    ) {
        let recording = u32::try_from(number).unwrap_or(u32::MAX);
        let factor = self.bins.width() / counts.bins.width().max(1);
        let bin_of = |bin: usize| {
            let bin = bin as u64 / factor.max(1);
            // There are few bins.
            u16::try_from(bin).unwrap_or(u16::MAX)
        };
        let threads = self.number_threads(recording, profile, &counts);
        let thread_of = |thread: u32| {
            let known = threads.get(thread as usize).or(threads.last());
            known.copied().unwrap_or_default()
        };
        for (bin, cells) in counts.cells.into_iter().enumerate() {
            self.cells.extend(cells.into_iter().map(|(cell, count)| {
                let cell = Cell {
                    thread: thread_of(cell.thread),
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
        let idle = has_idle.then(|| self.idle_thread(recording));
        self.idle.push(idle);
    }

    /// Numbers the threads of a recording that have samples in `counts`. Returns their numbers, by their numbers in the recording; the last one is for all
    /// other threads.
    fn number_threads(&mut self, recording: u32, profile: &Profile, counts: &Counts) -> Vec<u32> {
        let used: HashSet<u32, RandomState> = (counts.cells.iter())
            .flat_map(|cells| cells.keys().map(|cell| cell.thread))
            .collect();
        let mut numbers = vec![0; profile.threads.len() + 1];
        let mut has_others = used.contains(&OTHERS);
        for (number, thread) in (0..).zip(&profile.threads) {
            if used.contains(&number) {
                if self.threads.len() < MAX_THREADS as usize {
                    numbers[number as usize] = self.push(recording, Some(*thread));
                } else {
                    has_others = true;
                    numbers[number as usize] = OTHERS;
                }
            }
        }
        if has_others {
            let others = self.push(recording, None);
            let beyond = numbers.iter_mut().filter(|number| **number == OTHERS);
            beyond.for_each(|number| *number = others);
            numbers[profile.threads.len()] = others;
        }
        numbers
    }

    fn push(&mut self, recording: u32, thread: Option<Thread>) -> u32 {
        self.threads.push(PageThread { recording, thread });
        u32::try_from(self.threads.len() - 1).unwrap_or(u32::MAX)
    }

    /// The number of the idle thread of a recording, to which ticks of halted vCPUs belong.
    fn idle_thread(&mut self, recording: u32) -> u32 {
        let is_idle = |one: &PageThread| {
            let ids = one.thread.map(|thread| (thread.pid, thread.tid));
            one.recording == recording && ids == Some((IDLE_PID, IDLE_PID))
        };
        match self.threads.iter().position(is_idle) {
            Some(known) => u32::try_from(known).unwrap_or(u32::MAX),
            None => self.push(recording, Some(Thread::default())),
        }
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
