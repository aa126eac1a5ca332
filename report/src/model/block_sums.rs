//! Sums up the samples of a recording, block by block. What is looked up of a thread and of a stack is the same for all samples that refer to them in a block.

use kvmprof_recording::file::BlockNumbers;
use kvmprof_recording::{Mode, Sample, Ticks};

use super::stacks::Stack;
use super::sums::{Limits, Runner, Sums};
use crate::symbolize::{ProcessState, Resolver, StateTimes};

/// What is known of a thread of the present block.
#[derive(Clone, Copy, Debug, Default)]
struct KnownThread {
    /// `None` until it has a sample that is counted, with the present labels.
    runner: Option<Runner>,
    /// What its process has.
    state: StateTimes,
}

/// What the last sample with a stack of the present block was.
#[derive(Clone, Copy, Debug)]
struct KnownStack {
    thread: u32,
    mode: Mode,
    state: ProcessState,
    number: Option<u32>,
}

/// Sums up a recording.
pub struct BlockSums<'a> {
    /// The sums so far.
    pub sums: Sums,
    resolver: &'a Resolver,
    block: u64,
    threads: Vec<KnownThread>,
    stacks: Vec<Option<KnownStack>>,
}

impl<'a> BlockSums<'a> {
    /// Sums of a recording of `length` bytes; `resolver` has its mappings.
    pub fn new(length: usize, resolver: &'a Resolver) -> Self {
        Self {
            sums: Sums::new(Limits::of_recording(length)),
            resolver,
            block: 0,
            threads: Vec::new(),
            stacks: Vec::new(),
        }
    }

    /// The number of the stack of `sample`, which has these `frames`; `None` if it is beyond the limits.
    pub fn stack(&mut self, sample: &Sample, frames: &[u64], numbers: BlockNumbers) -> Option<u32> {
        if self.block != numbers.block {
            self.block = numbers.block;
            self.threads.clear();
            self.stacks.clear();
        }
        let thread = at(&mut self.threads, numbers.thread);
        if !thread.state.contains(sample.time) {
            let before = std::mem::replace(&mut thread.state, self.resolver.state_of(sample));
            if thread.state.state.labels != before.state.labels {
                thread.runner = None;
            }
        }
        let state = thread.state.state;
        let known = at(&mut self.stacks, numbers.stack);
        // A stack without frames is its sample's program counter.
        if let Some(known) = known.filter(|_| !frames.is_empty())
            && known.thread == numbers.thread
            && known.mode == sample.mode
            && known.state == state
        {
            return known.number;
        }
        let view = Stack::new(sample, frames, state);
        let number = self.sums.stack(sample.pid, view);
        *known = Some(KnownStack {
            thread: numbers.thread,
            mode: sample.mode,
            state,
            number,
        });
        number
    }

    /// Adds `ticks`, whose sample has the stack of this number. Returns the number of its thread.
    pub fn add(&mut self, ticks: &Ticks, stack: Option<u32>, numbers: BlockNumbers) -> Option<u32> {
        self.sums.add_ticks(ticks);
        let sample = ticks.sample.as_ref()?;
        let thread = at(&mut self.threads, numbers.thread);
        let labels = thread.state.state.labels;
        let new = || self.sums.runner(sample.pid, sample.tid, labels);
        let runner = *thread.runner.get_or_insert_with(new);
        self.sums.count(sample, runner, stack);
        runner.thread
    }
}

/// The value with this index. The indices of a block are those of what is in it.
fn at<T: Clone + Default>(all: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if all.len() <= index {
        all.resize(index + 1, T::default());
    }
    &mut all[index]
}
