//! The different stacks of a recording with their numbers of samples.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use kvmprof_recording::{LanguageFrame, Mode, Sample, StackEnd, StackSummary};

use crate::symbolize::{CodeAddress, LabelSet, MappingSet, ProcessState};

/// A call stack, innermost frame first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stack<'a> {
    /// The number of kernel frames, and how the parts end.
    pub summary: StackSummary,
    /// Its frames; only the program counter if no stack was taken.
    pub frames: &'a [u64],
    /// The mode of the vCPU.
    pub mode: Mode,
    /// The mappings of the process.
    pub mappings: MappingSet,
    /// The labels of the process.
    pub labels: LabelSet,
}

impl<'a> Stack<'a> {
    /// The stack of `sample` with `frames`; its program counter is the frame if there are none. `state` is that of its process.
    pub fn new(sample: &'a Sample, frames: &'a [u64], state: ProcessState) -> Self {
        let ProcessState { mappings, labels } = state;
        // Kernel frames don't depend on the process's mappings.
        let has_mappings =
            usize::from(sample.stack.kernel) < frames.len() || sample.mode == Mode::User;
        Self {
            summary: sample.stack,
            frames: if frames.is_empty() {
                std::slice::from_ref(&sample.pc)
            } else {
                frames
            },
            mode: sample.mode,
            mappings: if has_mappings {
                mappings
            } else {
                mappings.kernel_alone()
            },
            labels,
        }
    }

    /// The same stack with only its innermost frame, and the frame of the language that this one executes.
    pub fn innermost(self) -> Self {
        let length = 1 + usize::from(self.is_interpreter(0));
        Self {
            frames: self.frames.get(..length).unwrap_or_default(),
            summary: self.summary.dropped(),
            ..self
        }
    }

    /// Whether frames are missing at the outer end.
    pub fn is_cut_short(&self) -> bool {
        let is_missing = |end| {
            matches!(
                end,
                StackEnd::Truncated | StackEnd::Broken | StackEnd::Dropped
            )
        };
        is_missing(self.summary.user_end) || is_missing(self.summary.kernel_end)
    }

    /// Whether frame number `index` is a kernel frame. Frames of the host count as such.
    pub fn is_kernel(&self, index: usize) -> bool {
        let is_guests =
            self.mode != Mode::User && (index == 0 || index < usize::from(self.summary.kernel));
        is_guests || self.is_host(index)
    }

    /// Whether frame number `index` is one of the host's.
    pub fn is_host(&self, index: usize) -> bool {
        let first = self.frames.len().checked_sub(self.summary.host.into());
        self.summary.host > 0 && first.is_some_and(|first| index >= first)
    }

    /// Whether frame number `index` is that of an interpreter which executes functions of a language: their frames follow it.
    pub fn is_interpreter(&self, index: usize) -> bool {
        let is_language = |index: usize| {
            let frame = self.frames.get(index).copied();
            !self.is_kernel(index) && frame.and_then(LanguageFrame::from_word).is_some()
        };
        !self.is_kernel(index) && !is_language(index) && is_language(index + 1)
    }

    /// The address of frame number `index` to ask a resolver for, and whether it is one of the host's.
    pub(super) fn address(&self, index: usize) -> (CodeAddress, bool) {
        let is_kernel = self.is_kernel(index);
        // Kernel frames don't depend on the process's mappings.
        let mappings = match is_kernel {
            true => self.mappings.kernel_alone(),
            false => self.mappings,
        };
        let asked = CodeAddress {
            mappings,
            address: self.frames.get(index).copied().unwrap_or_default(),
            is_kernel,
        };
        (asked, self.is_host(index))
    }

    pub(super) fn addresses(self) -> impl Iterator<Item = (CodeAddress, bool)> {
        (0..self.frames.len()).map(move |index| self.address(index))
    }
}

/// The stacks of each process with their numbers of samples. They are numbered from 0 in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct StackCounts {
    known: Vec<FramelessStack>,
    /// The frames of all stacks, one after the other.
    frames: Vec<u64>,
    /// Where those of each stack end. Apart from the rest, so that a processor fetches both at once.
    ends: Vec<usize>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

/// A stack without its frames.
#[derive(Clone, Copy, Debug)]
struct FramelessStack {
    pid: i32,
    summary: StackSummary,
    mode: Mode,
    mappings: MappingSet,
    labels: LabelSet,
    count: u64,
}

impl FramelessStack {
    fn stack<'a>(&self, frames: &'a [u64]) -> Stack<'a> {
        Stack {
            summary: self.summary,
            frames,
            mode: self.mode,
            mappings: self.mappings,
            labels: self.labels,
        }
    }
}

/// The frames of stack number `index`.
fn frames_of<'a>(frames: &'a [u64], ends: &[usize], index: usize) -> &'a [u64] {
    let begin = index.checked_sub(1).map_or(0, |before| ends[before]);
    frames.get(begin..ends[index]).unwrap_or_default()
}

impl StackCounts {
    /// The number of different stacks.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The processes and their stacks with their numbers of samples, by number.
    pub fn iter(&self) -> impl Iterator<Item = (i32, Stack<'_>, u64)> {
        let known = self.known.iter().enumerate();
        known.map(|(index, known)| {
            let frames = frames_of(&self.frames, &self.ends, index);
            (known.pid, known.stack(frames), known.count)
        })
    }

    /// The process and the stack with this number.
    pub fn get(&self, number: u32) -> Option<(i32, Stack<'_>)> {
        let known = self.known.get(number as usize)?;
        let frames = frames_of(&self.frames, &self.ends, number as usize);
        Some((known.pid, known.stack(frames)))
    }

    /// The number of `stack` of process `pid`, if it is known.
    pub fn find(&self, pid: i32, stack: Stack<'_>) -> Option<u32> {
        let is_same = |number: &u32| {
            let frames = frames_of(&self.frames, &self.ends, *number as usize);
            let known = &self.known[*number as usize];
            known.pid == pid && known.stack(frames) == stack
        };
        let hash = hash(&self.hasher, pid, stack);
        self.numbers.find(hash, is_same).copied()
    }

    /// Adds `count` samples of a known stack.
    pub fn count(&mut self, number: u32, count: u64) {
        if let Some(known) = self.known.get_mut(number as usize) {
            known.count = known.count.saturating_add(count);
        }
    }

    /// Adds a stack that isn't known yet, and returns its number; `None` if there are more than can be numbered.
    pub fn insert(&mut self, pid: i32, stack: Stack<'_>) -> Option<u32> {
        let number = u32::try_from(self.known.len()).ok()?;
        self.frames.extend_from_slice(stack.frames);
        self.ends.push(self.frames.len());
        self.known.push(FramelessStack {
            pid,
            summary: stack.summary,
            mode: stack.mode,
            mappings: stack.mappings,
            labels: stack.labels,
            count: 0,
        });
        let (known, hasher) = (&self.known, &self.hasher);
        let (frames, ends) = (&self.frames, &self.ends);
        let new = hash(hasher, pid, stack);
        self.numbers.insert_unique(new, number, |number| {
            let index = *number as usize;
            let known = &known[index];
            let stack = known.stack(frames_of(frames, ends, index));
            hash(hasher, known.pid, stack)
        });
        Some(number)
    }
}

/// A hash of the parts that differ in most cases. Stacks with equal hashes are compared.
fn hash(hasher: &RandomState, pid: i32, stack: Stack<'_>) -> u64 {
    hasher.hash_one((pid, stack.mappings, stack.labels, stack.frames))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(sample: &'a Sample, frames: &'a [u64]) -> Stack<'a> {
        Stack::new(sample, frames, ProcessState::default())
    }

    #[test]
    fn stacks_are_numbered_in_order_of_appearance() {
        let sample = Sample {
            pc: 3,
            ..Sample::default()
        };
        let mut counts = StackCounts::default();
        for number in 0..1000_u64 {
            let frames = [number, 7];
            assert_eq!(counts.find(1, view(&sample, &frames)), None);
            let added = counts.insert(1, view(&sample, &frames));
            assert_eq!(added.map(u64::from), Some(number));
        }
        assert_eq!(counts.find(1, view(&sample, &[999, 7])), Some(999));
        assert_eq!(counts.find(2, view(&sample, &[999, 7])), None);
        counts.count(999, 2);
        assert_eq!(counts.iter().map(|(.., count)| count).sum::<u64>(), 2);
        assert_eq!(view(&sample, &[]).frames, [3]);
        assert_eq!(view(&sample, &[4, 5]).innermost().frames, [4]);
    }
}
