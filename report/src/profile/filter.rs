//! Decides which ticks of a recording are selected.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use kvmprof_recording::file::{FileError, Observer, Recording};
use kvmprof_recording::{IDLE_PID, Mode, Sample, Ticks};

use super::functions::HALTED;
use super::{Pattern, Selection, StackCounts, StackView};
use crate::symbolize::{MappingSet, Resolver};

/// Maximum number of frames of stacks whose result is kept. When there are more, all results are dropped and computed anew.
const MAX_FRAMES: usize = 16 << 20;

/// The part of a [`Selection`] beside its time and vCPUs, prepared for one recording. A tick is selected if it matches all that the selection
/// has.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `None` for all.
    pids: Option<BTreeSet<i32>>,
    /// Whether idle ticks without a sample aren't selected.
    is_without_idle: bool,
    modes: Vec<Mode>,
    grep: Option<Grep>,
}

/// A pattern, and its results for stacks.
#[derive(Clone, Debug)]
struct Grep {
    pattern: Pattern,
    known: RefCell<Known>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    stacks: StackCounts,
    /// Whether a stack matches, by its number in `stacks`.
    verdicts: Vec<bool>,
    frames: usize,
    names: HashMap<Arc<str>, bool, RandomState>,
}

impl Filter {
    /// The filter for `selection` of `recording`, which is read if processes are selected by name; `observer` gets the progress.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn new(
        selection: &Selection,
        recording: &Recording,
        observer: &dyn Observer,
    ) -> Result<Self, FileError> {
        let mut filter = Self::without_names(selection);
        if !selection.comms.is_empty() {
            let mut named = pids_by_name(&selection.comms, recording, observer)?;
            named.retain(|pid| filter.wants_process(*pid));
            filter.is_without_idle |= !named.contains(&IDLE_PID);
            filter.pids = Some(named);
        }
        Ok(filter)
    }

    /// The filter for `selection` without its names of threads.
    pub fn without_names(selection: &Selection) -> Self {
        let pids = &selection.pids;
        let grep = selection.grep.as_ref();
        let is_idle_wanted = (pids.is_empty() || pids.contains(&IDLE_PID))
            && (selection.modes.is_empty() || selection.modes.contains(&Mode::Idle))
            && grep.is_none_or(|grep| grep.matches(HALTED));
        Self {
            pids: (!pids.is_empty()).then(|| pids.iter().copied().collect()),
            is_without_idle: !is_idle_wanted,
            modes: selection.modes.clone(),
            grep: selection.grep.clone().map(|pattern| Grep {
                pattern,
                known: RefCell::default(),
            }),
        }
    }

    fn wants_process(&self, pid: i32) -> bool {
        self.pids.as_ref().is_none_or(|pids| pids.contains(&pid))
    }

    fn wants_mode(&self, mode: Mode) -> bool {
        self.modes.is_empty() || self.modes.contains(&mode)
    }

    /// Whether idle ticks without a sample are selected.
    pub fn wants_idle(&self) -> bool {
        !self.is_without_idle
    }

    /// Whether a sample with these `frames` is selected; `resolver` names them.
    pub fn wants(&self, sample: &Sample, frames: &[u64], resolver: &Resolver) -> bool {
        self.wants_process(sample.pid)
            && self.wants_mode(sample.mode)
            && self.grep.as_ref().is_none_or(|grep| {
                let mappings = resolver.mappings_of(sample);
                grep.wants(sample, frames, mappings, resolver)
            })
    }

    /// `ticks` without idle ticks and samples that aren't selected.
    pub fn only(&self, ticks: &Ticks, frames: &[u64], resolver: &Resolver) -> Ticks {
        let wanted = |sample: &Sample| self.wants(sample, frames, resolver);
        Ticks {
            idle: if self.wants_idle() { ticks.idle } else { 0 },
            sample: ticks.sample.filter(wanted),
            ..*ticks
        }
    }
}

impl Grep {
    fn wants(
        &self,
        sample: &Sample,
        frames: &[u64],
        mappings: MappingSet,
        resolver: &Resolver,
    ) -> bool {
        let view = StackView::new(sample, frames, mappings);
        let mut known = self.known.borrow_mut();
        let verdict = |known: &Known, number: u32| known.verdicts.get(number as usize).copied();
        let number = known.stacks.find(sample.pid, view);
        if let Some(verdict) = number.and_then(|number| verdict(&known, number)) {
            return verdict;
        }
        if known.frames > MAX_FRAMES {
            *known = Known::default();
        }
        let stack = view.to_stack();
        let verdict = stack.asked_all(sample.pid).any(|asked| {
            let resolved = resolver.resolve(asked);
            resolved
                .frames
                .iter()
                .any(|frame| known.matches(&self.pattern, &frame.function))
        });
        known.frames = known.frames.saturating_add(view.depth());
        known.stacks.insert(sample.pid, view);
        known.verdicts.push(verdict);
        verdict
    }
}

impl Known {
    fn matches(&mut self, pattern: &Pattern, name: &Arc<str>) -> bool {
        if let Some(verdict) = self.names.get(name) {
            return *verdict;
        }
        let verdict = pattern.matches(name);
        self.names.insert(Arc::clone(name), verdict);
        verdict
    }
}

/// The processes of which a thread had one of the names.
fn pids_by_name(
    names: &[String],
    recording: &Recording,
    observer: &dyn Observer,
) -> Result<BTreeSet<i32>, FileError> {
    let mut pids = BTreeSet::new();
    recording.read_observed(observer, |ticks, _| {
        let Some(sample) = &ticks.sample else {
            return;
        };
        let name = sample.comm.split(|byte| *byte == 0).next();
        let name = name.unwrap_or_default();
        if names.iter().any(|wanted| wanted.as_bytes() == name) {
            pids.insert(sample.pid);
        }
    })?;
    Ok(pids)
}
