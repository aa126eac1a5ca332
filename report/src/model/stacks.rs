//! The different stacks of a recording with their numbers of samples.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use kvmprof_recording::{Mode, Sample, StackEnd, StackSummary};

use crate::symbolize::{Asked, LabelSet, MappingSet, ProcessState};

/// A call stack, innermost frame first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// The number of kernel frames, and how the parts end.
    pub summary: StackSummary,
    /// Its frames; only the program counter if no stack was taken.
    pub frames: Vec<u64>,
    /// The mode of the vCPU.
    pub mode: Mode,
    /// The mappings of the process.
    pub mappings: MappingSet,
    /// The labels of the process.
    pub labels: LabelSet,
}

impl Stack {
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

    /// The address of frame number `index` to ask a resolver for, and whether it is one of the host's.
    pub(super) fn address(&self, index: usize) -> (Asked, bool) {
        let is_kernel = self.is_kernel(index);
        // Kernel frames don't depend on the process's mappings.
        let mappings = match is_kernel {
            true => self.mappings.kernel_alone(),
            false => self.mappings,
        };
        let asked = Asked {
            mappings,
            address: self.frames.get(index).copied().unwrap_or_default(),
            is_kernel,
        };
        (asked, self.is_host(index))
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = (Asked, bool)> {
        (0..self.frames.len()).map(|index| self.address(index))
    }
}

/// The stacks of each process with their numbers of samples. They are numbered from 0 in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct StackCounts {
    keys: Vec<(i32, Stack)>,
    counts: Vec<u64>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

/// A [`Stack`] with borrowed frames: most samples have a known stack, so that nothing has to be allocated.
#[derive(Clone, Copy, Debug)]
pub struct StackView<'a> {
    summary: StackSummary,
    frames: &'a [u64],
    mode: Mode,
    mappings: MappingSet,
    labels: LabelSet,
}

impl<'a> StackView<'a> {
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

    /// The number of its frames.
    pub fn depth(&self) -> usize {
        self.frames.len()
    }

    /// The same stack with only its innermost frame.
    pub fn innermost(self) -> Self {
        Self {
            frames: self.frames.get(..1).unwrap_or_default(),
            summary: self.summary.dropped(),
            ..self
        }
    }

    /// The stack with frames of its own.
    pub fn to_stack(self) -> Stack {
        Stack {
            summary: self.summary,
            frames: self.frames.to_vec(),
            mode: self.mode,
            mappings: self.mappings,
            labels: self.labels,
        }
    }
}

impl<'a> From<&'a Stack> for StackView<'a> {
    fn from(stack: &'a Stack) -> Self {
        Self {
            summary: stack.summary,
            frames: &stack.frames,
            mode: stack.mode,
            mappings: stack.mappings,
            labels: stack.labels,
        }
    }
}

impl StackCounts {
    /// The number of different stacks.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The processes and their stacks, by number.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &(i32, Stack)> {
        self.keys.iter()
    }

    /// The process and the stack with this number.
    pub fn get(&self, number: u32) -> Option<&(i32, Stack)> {
        self.keys.get(number as usize)
    }

    /// The numbers of samples, by number.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &u64> {
        self.counts.iter()
    }

    /// The number of `stack` of process `pid`, if it is known.
    pub fn find(&self, pid: i32, stack: StackView<'_>) -> Option<u32> {
        let is_same = |number: &u32| is_same(&self.keys[*number as usize], pid, stack);
        let hash = hash(&self.hasher, pid, stack);
        self.numbers.find(hash, is_same).copied()
    }

    /// Adds `count` samples of a known stack.
    pub fn count(&mut self, number: u32, count: u64) {
        if let Some(sum) = self.counts.get_mut(number as usize) {
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds a stack that isn't known yet, and returns its number; `None` if there are more than can be numbered.
    pub fn insert(&mut self, pid: i32, stack: StackView<'_>) -> Option<u32> {
        let number = u32::try_from(self.keys.len()).ok()?;
        let new = hash(&self.hasher, pid, stack);
        self.keys.push((pid, stack.to_stack()));
        self.counts.push(0);
        let (keys, hasher) = (&self.keys, &self.hasher);
        self.numbers.insert_unique(new, number, |number| {
            let (pid, stack) = &keys[*number as usize];
            hash(hasher, *pid, stack.into())
        });
        Some(number)
    }
}

fn is_same(known: &(i32, Stack), pid: i32, stack: StackView<'_>) -> bool {
    let (known_pid, known) = known;
    *known_pid == pid
        && known.frames == stack.frames
        && known.summary == stack.summary
        && known.mode == stack.mode
        && known.mappings == stack.mappings
        && known.labels == stack.labels
}

/// A hash of the parts that differ in most cases. Stacks with equal hashes are compared.
fn hash(hasher: &RandomState, pid: i32, stack: StackView<'_>) -> u64 {
    hasher.hash_one((pid, stack.mappings, stack.labels, stack.frames))
}

impl<'a> IntoIterator for &'a StackCounts {
    type Item = (&'a (i32, Stack), &'a u64);
    type IntoIter = std::iter::Zip<std::slice::Iter<'a, (i32, Stack)>, std::slice::Iter<'a, u64>>;

    fn into_iter(self) -> Self::IntoIter {
        self.keys.iter().zip(&self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(sample: &'a Sample, frames: &'a [u64]) -> StackView<'a> {
        StackView::new(sample, frames, ProcessState::default())
    }

    #[test]
    fn stacks_are_numbered_as_they_come() {
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
        assert_eq!(counts.values().sum::<u64>(), 2);
        assert_eq!(view(&sample, &[]).to_stack().frames, [3]);
        assert_eq!(view(&sample, &[4, 5]).innermost().to_stack().frames, [4]);
    }
}
