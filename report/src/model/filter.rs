//! Decides which ticks of a recording are selected.

use std::collections::BTreeSet;

use kvmprof_recording::file::{FileError, Observer, Recording};
use kvmprof_recording::{IDLE_PID, Mode, Sample, Ticks};

use super::code::{Code, NodeId};
use super::namer::Namer;
use super::transform::{Transformer, keep_halted};
use super::{Criteria, HALTED, HALTED_MODULE, Label, Pattern, Selection, Stack, StackCounts};
use crate::symbolize::Resolver;

/// The part of a [`Selection`] beside its time and vCPUs, prepared for one recording.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    only: ThreadFilter,
    not: ThreadFilter,
    /// Whether idle ticks without a sample aren't selected.
    is_without_idle: bool,
}

/// What [`super::Criteria`] say about the thread of a sample, and its mode. `None` stands for nothing.
#[derive(Clone, Debug, Default)]
struct ThreadFilter {
    pids: Option<BTreeSet<i32>>,
    tids: Option<BTreeSet<i32>>,
    modes: Option<Vec<Mode>>,
}

impl ThreadFilter {
    fn new(criteria: &Criteria) -> Self {
        let set = |ids: &[i32]| (!ids.is_empty()).then(|| ids.iter().copied().collect());
        Self {
            pids: set(&criteria.pids),
            tids: set(&criteria.tids),
            modes: (!criteria.modes.is_empty()).then(|| criteria.modes.clone()),
        }
    }

    /// Whether each list that says something has the sample; `None` if no list does.
    fn has(&self, sample: &Sample) -> [Option<bool>; 3] {
        let has = |ids: &Option<BTreeSet<i32>>, id| ids.as_ref().map(|ids| ids.contains(&id));
        let modes = self.modes.as_ref();
        [
            has(&self.pids, sample.pid),
            has(&self.tids, sample.tid),
            modes.map(|modes| modes.contains(&sample.mode)),
        ]
    }
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
        let Selection { only, not, .. } = selection;
        let mut filter = Self {
            only: ThreadFilter::new(only),
            not: ThreadFilter::new(not),
            is_without_idle: !is_idle_wanted(selection),
        };
        if !only.comms.is_empty() {
            let mut named = pids_by_name(&only.comms, recording, observer)?;
            if let Some(pids) = &filter.only.pids {
                named.retain(|pid| pids.contains(pid));
            }
            filter.is_without_idle |= !named.contains(&IDLE_PID);
            filter.only.pids = Some(named);
        }
        if !not.comms.is_empty() {
            let named = pids_by_name(&not.comms, recording, observer)?;
            filter.is_without_idle |= named.contains(&IDLE_PID);
            filter.not.pids.get_or_insert_default().extend(named);
        }
        Ok(filter)
    }

    /// Whether idle ticks without a sample are selected.
    pub fn wants_idle(&self) -> bool {
        !self.is_without_idle
    }

    /// `ticks` without idle ticks and samples that aren't selected. [`StackFilter`] checks the rest.
    pub fn only(&self, ticks: &Ticks) -> Ticks {
        let wanted = |sample: &Sample| {
            let is_left_out = self.not.has(sample).contains(&Some(true));
            !is_left_out && !self.only.has(sample).contains(&Some(false))
        };
        Ticks {
            idle: if self.wants_idle() { ticks.idle } else { 0 },
            sample: ticks.sample.filter(wanted),
            ..*ticks
        }
    }
}

/// Whether idle ticks without a sample are selected, but for the names of threads.
fn is_idle_wanted(selection: &Selection) -> bool {
    let Selection { only, not, .. } = selection;
    let matches = |pattern: &Pattern| pattern.matches(HALTED);
    let is_module = |name: &String| name == HALTED_MODULE;
    let has = |ids: &[i32]| ids.is_empty() || ids.contains(&IDLE_PID);
    has(&only.pids)
        && has(&only.tids)
        && (only.modes.is_empty() || only.modes.contains(&Mode::Idle))
        && only.labels.is_empty()
        && (only.modules.is_empty() || only.modules.iter().any(is_module))
        && only.greps.iter().all(matches)
        && !not.pids.contains(&IDLE_PID)
        && !not.tids.contains(&IDLE_PID)
        && !not.modes.contains(&Mode::Idle)
        && !not.modules.iter().any(is_module)
        && !not.greps.iter().any(matches)
        && keep_halted(&selection.transforms)
}

/// Decides by labels and stacks, and knows the results so far.
pub struct StackFilter<'a> {
    selection: &'a Selection,
    namer: Namer<'a>,
    /// Whether a stack matches, by its number.
    stacks: Vec<Option<bool>>,
    only: Vec<NameFilter<'a>>,
    not: Vec<NameFilter<'a>>,
    transformer: Transformer<'a>,
}

/// A pattern, and whether names match it, by their numbers.
struct NameFilter<'a> {
    pattern: &'a Pattern,
    names: Vec<Option<bool>>,
}

impl<'a> NameFilter<'a> {
    fn all(criteria: &'a Criteria) -> Vec<Self> {
        let filter = |pattern| Self {
            pattern,
            names: Vec::new(),
        };
        criteria.greps.iter().map(filter).collect()
    }

    /// Whether the name of a function of the stack `node` matches.
    fn is_on(&mut self, code: &Code, node: NodeId) -> bool {
        self.names.resize(code.names(), None);
        code.frames(node).any(|frame| {
            let known = &mut self.names[frame.name_id.index()];
            *known.get_or_insert_with(|| self.pattern.matches(frame.name))
        })
    }
}

impl<'a> StackFilter<'a> {
    /// The filter for `selection`, if it has any of this; `resolver` names the frames.
    pub fn new(selection: &'a Selection, resolver: &'a Resolver) -> Option<Self> {
        let is_needed = selection.is_of_stacks();
        is_needed.then(|| Self {
            selection,
            namer: Namer::new(resolver, None),
            stacks: Vec::new(),
            only: NameFilter::all(&selection.only),
            not: NameFilter::all(&selection.not),
            transformer: Transformer::new(&selection.transforms),
        })
    }

    /// Whether the stack with this number in `stacks` matches.
    pub fn wants(&mut self, stack: Option<u32>, stacks: &StackCounts) -> bool {
        let found = stack.and_then(|number| Some((number as usize, stacks.get(number)?)));
        let Some((index, (_, stack))) = found else {
            return false;
        };
        if let Some(Some(verdict)) = self.stacks.get(index) {
            return *verdict;
        }
        let verdict = self.has_labels(stack) && self.has_functions(stack);
        if self.stacks.len() <= index {
            self.stacks.resize(index + 1, None);
        }
        self.stacks[index] = Some(verdict);
        verdict
    }

    fn has_labels(&self, stack: Stack<'_>) -> bool {
        let labels = self.namer.labels();
        let has = |label: &Label| {
            let value = labels.value(stack.labels, &label.key);
            value.is_some_and(|value| label.is_of(value))
        };
        let Selection { only, not, .. } = self.selection;
        only.labels.iter().all(has) && !not.labels.iter().any(has)
    }

    fn has_functions(&mut self, stack: Stack<'_>) -> bool {
        let node = self.namer.node(stack);
        let code = self.namer.code();
        let has_any = |modules: &[String]| {
            let is_one = |name: &str| modules.iter().any(|module| module == name);
            code.frames(node).any(|frame| is_one(frame.module))
        };
        let Selection { only, not, .. } = self.selection;
        (only.modules.is_empty() || has_any(&only.modules))
            && (not.modules.is_empty() || !has_any(&not.modules))
            && self.only.iter_mut().all(|names| names.is_on(code, node))
            && !self.not.iter_mut().any(|names| names.is_on(code, node))
            && self.transformer.keeps(code, node)
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
