//! The samples of stacks by thread and vCPU, which are counted on request: most stacks have several such parts.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use kvmprof_recording::file::RecordingInfo;

use super::{Profile, Selected, Selection, Watcher};
use crate::budget::{OutputBudget, TooMuch};
use crate::symbolize::Resolver;

/// The samples of a stack by one thread on one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSamples {
    /// The stack, by its number in [`Profile::stacks`].
    pub stack: u32,
    /// The thread, by its number in [`Profile::threads`]; `None` if it is beyond the limits.
    pub thread: Option<u32>,
    /// The vCPU; `None` if it is unknown.
    pub vcpu: Option<u16>,
    /// The number of samples.
    pub ticks: u64,
}

/// Counts the samples of a recording by stack, thread and vCPU.
#[derive(Debug)]
pub struct ThreadCounts {
    limit: Option<u64>,
    budget: OutputBudget,
    counts: HashMap<Key, u64, RandomState>,
    /// Set when they are more than fits.
    refused: Option<TooMuch>,
}

type Key = (u32, Option<u32>, Option<u16>);

/// Bytes that a part takes while it is counted, at most: a table is half empty after it grew.
const PART: usize = 2 * size_of::<(Key, u64)>();

impl ThreadCounts {
    /// No samples yet. They can take `limit` bytes of memory, or what is usual for a recording of its length.
    pub fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            budget: OutputBudget::limited(limit, 0),
            counts: HashMap::default(),
            refused: None,
        }
    }

    fn count(&mut self, key: Key) {
        if let Some(count) = self.counts.get_mut(&key) {
            *count = count.saturating_add(1);
        } else if self.refused.is_none() {
            match self.budget.take(PART) {
                Ok(()) => _ = self.counts.insert(key, 1),
                Err(too_much) => self.refused = Some(too_much),
            }
        }
    }
}

impl Watcher for ThreadCounts {
    fn begin(&mut self, length: usize, _: &RecordingInfo, _: &Selection, _: &Resolver) {
        *self = Self {
            budget: OutputBudget::limited(self.limit, length),
            ..Self::new(self.limit)
        };
    }

    fn take(&mut self, selected: &Selected) {
        if let (Some(sample), Some(stack)) = (&selected.sample, selected.stack) {
            self.count((stack, selected.thread, Some(sample.vcpu)));
        }
    }
}

impl Profile {
    /// Gives each recording its `parts`, which were counted while it was read.
    ///
    /// # Errors
    /// They were more than their limit of memory.
    pub fn set_parts(&mut self, parts: Vec<ThreadCounts>) -> Result<(), TooMuch> {
        let mut lists: Vec<Vec<ThreadSamples>> = Vec::with_capacity(parts.len());
        for counted in parts {
            if let Some(too_much) = counted.refused {
                return Err(too_much);
            }
            let counts = counted.counts.into_iter();
            let list = counts.map(|((stack, thread, vcpu), ticks)| ThreadSamples {
                stack,
                thread,
                vcpu,
                ticks,
            });
            lists.push(list.collect());
        }
        let mut lists = lists.into_iter();
        self.parts = lists.next().unwrap_or_default();
        for (recording, list) in self.merged.iter_mut().zip(lists) {
            recording.parts = list;
        }
        Ok(())
    }
}
