//! Decides which ticks of a recording are selected.

use std::collections::BTreeSet;

use kvmprof_recording::file::{FileError, Observer, Recording};
use kvmprof_recording::{IDLE_PID, Mode, Sample, Ticks};

use super::namer::Namer;
use super::{HALTED, Selection, Stack, StackCounts};
use crate::symbolize::Resolver;

/// The part of a [`Selection`] beside its time and vCPUs, prepared for one recording. A tick is selected if it matches all that the selection
/// has.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `None` for all.
    pids: Option<BTreeSet<i32>>,
    /// Whether idle ticks without a sample aren't selected.
    is_without_idle: bool,
    modes: Vec<Mode>,
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
            && selection.labels.is_empty()
            && grep.is_none_or(|grep| grep.matches(HALTED));
        Self {
            pids: (!pids.is_empty()).then(|| pids.iter().copied().collect()),
            is_without_idle: !is_idle_wanted,
            modes: selection.modes.clone(),
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

    /// `ticks` without idle ticks and samples that aren't selected. [`StackFilter`] checks the rest.
    pub fn only(&self, ticks: &Ticks) -> Ticks {
        let wanted =
            |sample: &Sample| self.wants_process(sample.pid) && self.wants_mode(sample.mode);
        Ticks {
            idle: if self.wants_idle() { ticks.idle } else { 0 },
            sample: ticks.sample.filter(wanted),
            ..*ticks
        }
    }
}

/// A pattern for the names of functions and wanted labels, and the results so far.
pub struct StackFilter<'a> {
    selection: &'a Selection,
    namer: Namer<'a>,
    /// Whether a stack matches, by its number.
    stacks: Vec<Option<bool>>,
    /// Whether a name does, by its number.
    names: Vec<Option<bool>>,
}

impl<'a> StackFilter<'a> {
    /// The filter for `selection`, if it has a pattern or labels; `resolver` names the frames.
    pub fn new(selection: &'a Selection, resolver: &'a Resolver) -> Option<Self> {
        let is_needed = selection.grep.is_some() || !selection.labels.is_empty();
        is_needed.then(|| Self {
            selection,
            namer: Namer::new(resolver, None),
            stacks: Vec::new(),
            names: Vec::new(),
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
        let verdict = self.has_labels(stack) && self.has_function(stack);
        if self.stacks.len() <= index {
            self.stacks.resize(index + 1, None);
        }
        self.stacks[index] = Some(verdict);
        verdict
    }

    fn has_labels(&self, stack: Stack<'_>) -> bool {
        let labels = self.namer.labels();
        let mut wanted = self.selection.labels.iter();
        wanted.all(|label| {
            let value = labels.value(stack.labels, &label.key);
            value.is_some_and(|value| label.is_of(value))
        })
    }

    fn has_function(&mut self, stack: Stack<'_>) -> bool {
        let Some(pattern) = &self.selection.grep else {
            return true;
        };
        let node = self.namer.node(stack);
        let code = self.namer.code();
        self.names.resize(code.names(), None);
        code.frames(node).any(|frame| {
            let known = &mut self.names[frame.name_id.index()];
            *known.get_or_insert_with(|| pattern.matches(frame.name))
        })
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
