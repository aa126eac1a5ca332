//! A stretch of samples, and its row in a table.

use std::sync::Arc;

use kvmprof_recording::Sample;
use serde::Serialize;

use super::running::{COPIES, Names, Running};
use crate::budget::{OutputBudget, TooMuch};
use crate::model::{Frame, FrameKind};

/// Maximum number of different stacks of a stretch that are kept.
const MAX_STACKS: usize = 64;
/// Maximum number of functions of a stretch's first stack in its row.
const MAX_FUNCTIONS: usize = 64;

/// Consecutive samples of one thread on one vCPU, all with interrupts off, or all with preemption off. For the latter, read "preemption" instead of
/// "interrupts" below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StretchRow {
    /// The vCPU.
    pub vcpu: u16,
    /// The thread's pid in the guest; -1 when unknown.
    pub pid: i32,
    /// The thread's tid.
    pub tid: i32,
    /// The time of the first sample, in ns from the recording's start.
    pub begin_ns: u64,
    /// The time from the first sample to the last one, in ns; 0 for a single one. Interrupts were off for at least that long, unless they were
    /// on between samples.
    pub seen_ns: u64,
    /// The time from the last tick before with interrupts on to the next one after, in ns. Interrupts were off for no longer.
    pub at_most_ns: u64,
    /// The number of samples.
    pub samples: u64,
    /// The number of ticks in it at which the host ran something else.
    pub stolen: u64,
    /// What ran at the first sample.
    pub first: Running,
    /// The functions on the kernel's stack at the first sample, innermost first, 64 at most.
    pub stack: Vec<String>,
    /// The innermost function of the kernel that is on the stacks of all samples; `None` if there is none.
    pub common: Option<String>,
}

/// A stretch that has ended or is still open. Times are in ns of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretch {
    /// The vCPU.
    pub vcpu: u16,
    /// The thread's pid.
    pub pid: i32,
    /// Its tid.
    pub tid: i32,
    /// The time of the first sample.
    pub first: u64,
    /// The time of the last sample.
    pub last: u64,
    /// The last time before the first sample with interrupts on.
    pub before: u64,
    /// The first time after the last sample with interrupts on.
    pub behind: u64,
    /// The number of samples so far.
    pub samples: u64,
    /// The number of ticks in it at which the host ran something else.
    pub stolen: u64,
    /// Whether processes have run since that weren't recorded.
    pub is_over: bool,
    /// The numbers of the samples' stacks, each once.
    pub stacks: Vec<Option<u32>>,
}

impl Stretch {
    fn seen(&self) -> u64 {
        self.last.saturating_sub(self.first)
    }

    fn at_most(&self) -> u64 {
        self.behind.saturating_sub(self.before)
    }

    /// The key by which the longest stretches are found.
    pub fn length(&self) -> (u64, u64, u64) {
        (self.seen(), self.samples, self.at_most())
    }

    /// Adds a sample with the stack of this number.
    pub fn add(&mut self, sample: &Sample, stack: Option<u32>) {
        self.last = sample.time;
        self.samples += 1;
        if self.stacks.len() < MAX_STACKS && !self.stacks.contains(&stack) {
            self.stacks.push(stack);
        }
    }

    /// The row of this stretch. `began` is the start of the recording.
    ///
    /// # Errors
    /// The row doesn't fit into `budget`.
    pub fn row(
        &self,
        began: u64,
        names: &Names<'_>,
        budget: &OutputBudget,
    ) -> Result<StretchRow, TooMuch> {
        let first = self.stacks.first().copied().flatten();
        let running = names.running(first);
        let functions = kernel_functions(names.frames(first));
        let common = common(&self.stacks, names);
        let all = running.names().into_iter();
        let all = all.chain(functions.iter().map(|name| &**name));
        budget.take_row(all.chain(common.as_deref()), COPIES)?;
        let owned = |name: &Arc<str>| name.as_ref().to_owned();
        Ok(StretchRow {
            vcpu: self.vcpu,
            pid: self.pid,
            tid: self.tid,
            begin_ns: self.first.saturating_sub(began),
            seen_ns: self.seen(),
            at_most_ns: self.at_most(),
            samples: self.samples,
            stolen: self.stolen,
            first: running.to_row(),
            stack: functions.iter().map(owned).collect(),
            common: common.as_ref().map(owned),
        })
    }
}

fn kernel_functions<'a>(frames: impl Iterator<Item = Frame<'a>>) -> Vec<Arc<str>> {
    let kernel = frames.take_while(|frame| frame.kind == FrameKind::Kernel);
    let names = kernel.map(|frame| Arc::clone(frame.name));
    names.take(MAX_FUNCTIONS).collect()
}

/// The innermost function of the kernel that all `stacks` have in common, from the outermost frame on.
fn common(stacks: &[Option<u32>], names: &Names<'_>) -> Option<Arc<str>> {
    let outermost_first = |stack: &Option<u32>| {
        let mut frames: Vec<Frame<'_>> = names.frames(*stack).collect();
        frames.reverse();
        frames
    };
    let mut shared = outermost_first(stacks.first()?);
    for stack in stacks.iter().skip(1) {
        let frames = outermost_first(stack);
        let same = shared.iter().zip(&frames).take_while(|(one, other)| {
            (one.name_id, one.module_id) == (other.name_id, other.module_id)
        });
        let length = same.count();
        shared.truncate(length);
    }
    let innermost = shared.last().filter(|frame| frame.is_kernel)?;
    Some(Arc::clone(innermost.name))
}
