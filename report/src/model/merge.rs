//! Counts several recordings together.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::code::Code;
use super::modes::{ModeCounts, add_modes, sum_modes};
use super::{Process, Profile, Thread, Weight};
use crate::text::visible;
use kvmprof_recording::file::Account;

/// Ticks of these recordings have different units, so that they can't be summed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{first} was sampled at {first_rate}, {other} at {other_rate}: ticks that stand for different times or events cannot be \
     added up. Merge recordings of the same --hz or --event"
)]
pub struct DifferentTicks {
    first: String,
    first_rate: String,
    other: String,
    other_rate: String,
}

impl Profile {
    /// Counts all of `profiles` together, each of which is of one recording.
    ///
    /// # Errors
    /// Their ticks are different times or events.
    pub fn merge(mut profiles: Vec<Self>) -> Result<Self, DifferentTicks> {
        let mut first = if profiles.is_empty() {
            Self::default()
        } else {
            profiles.remove(0)
        };
        let weight = |profile: &Self| Weight::of_tick(&profile.contents.info);
        let other = profiles
            .iter()
            .find(|other| weight(other) != weight(&first));
        if let Some(other) = other {
            return Err(DifferentTicks {
                first: visible(&first.file),
                first_rate: first.contents.info.rate(),
                other: visible(&other.file),
                other_rate: other.contents.info.rate(),
            });
        }
        first.merged = profiles;
        first.share_code();
        Ok(first)
    }

    /// Lets all recordings have the same numbers for functions, names and stacks.
    pub fn share_code(&mut self) {
        let mut code = Code::clone(&self.code);
        for other in &mut self.merged {
            let nodes = code.absorb(&other.code);
            for stack in &mut other.stacks {
                stack.node = nodes.get(stack.node.index()).copied().unwrap_or_default();
            }
        }
        self.code = Rc::new(code);
        for other in &mut self.merged {
            other.code = Rc::clone(&self.code);
        }
    }

    /// This recording, then those that are counted together with it. Members and methods are about one recording alone, except
    /// [`Self::samples`], [`Self::account`] and [`Self::has_symbols`] of this one.
    pub fn recordings(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.merged)
    }

    /// All processes with the numbers of their recordings, from 0: a pid means nothing in another recording.
    pub fn all_processes(&self) -> impl Iterator<Item = (usize, i32, &Process)> {
        let recordings = self.recordings().enumerate();
        recordings.flat_map(|(number, recording)| {
            let processes = recording.processes.iter();
            processes.map(move |(pid, process)| (number, *pid, process))
        })
    }

    /// All threads with the numbers of their recordings, from 0, in the order of their ids.
    pub fn all_threads(&self) -> Vec<(usize, Thread)> {
        let recordings = self.recordings().enumerate();
        let threads = recordings.flat_map(|(number, recording)| {
            let threads = recording.threads.iter();
            threads.map(move |thread| (number, *thread))
        });
        let mut threads: Vec<(usize, Thread)> = threads.collect();
        let ids = |(number, thread): &(usize, Thread)| (*number, thread.pid, thread.tid);
        threads.sort_by_key(ids);
        // Whatever labels its process has, it is one thread.
        threads.dedup_by(|later, first| {
            let is_same = ids(later) == ids(first);
            if is_same {
                add_modes(&mut first.1.modes, later.1.modes);
                if later.1.comm[0] != 0 {
                    first.1.comm = later.1.comm;
                }
                first.1.inner_tid = later.1.inner_tid.or(first.1.inner_tid);
            }
            is_same
        });
        threads
    }

    /// Samples by mode of each vCPU. vCPUs of the same number are counted together.
    pub fn all_vcpus(&self) -> BTreeMap<u16, ModeCounts> {
        let mut all = self.vcpus.clone();
        for (vcpu, modes) in self.merged.iter().flat_map(|other| &other.vcpus) {
            add_modes(all.entry(*vcpu).or_default(), *modes);
        }
        all
    }

    /// The account of the ticks of all recordings.
    pub fn account(&self) -> Account {
        let mut account = Account::default();
        for recording in self.recordings() {
            account.merge(&recording.contents.account);
        }
        account
    }

    /// All samples, and idle ticks without samples, by mode.
    pub fn by_mode(&self) -> ModeCounts {
        let mut counts = ModeCounts::default();
        for (_, _, process) in self.all_processes() {
            add_modes(&mut counts, process.modes);
        }
        counts
    }

    /// All samples, and idle ticks without samples.
    pub fn samples(&self) -> u64 {
        sum_modes(&self.by_mode())
    }
}
