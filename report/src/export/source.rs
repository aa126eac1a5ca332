//! The source of all exports: a recording's events in the order of the file, and the names of their frames.

use std::path::Path;

use super::ExportError;
use super::events::{Event, EventThread, Events};
use crate::budget::OutputBudget;
use crate::model::{Frame, StackSum, outermost_of_guest};
use crate::profile::{Profile, Selection, Weight};
use crate::symbolize::Resolver;
use kvmprof_recording::file::{FileError, Observer, Recording, Unobserved};
use kvmprof_recording::tasks::TaskLook;

/// Bytes that an event takes in an export's tables, beside those of its stack. Formats differ.
const EVENT: usize = 64;

/// A recording to export.
#[derive(Debug)]
pub struct Source {
    recording: Recording,
    profile: Profile,
    events: Events,
    budget: OutputBudget,
}

impl Source {
    /// Opens the recording at `path`, with all processes or only `pids`.
    ///
    /// # Errors
    /// As [`Recording::open`] and [`Recording::read`].
    pub fn open(path: &Path, pids: &[i32]) -> Result<Self, FileError> {
        let recording = Recording::open(path)?;
        let resolver = Resolver::from_contents(&recording.contents()?);
        Self::read(recording, Selection::from_pids(pids), resolver, &Unobserved)
    }

    /// The `selection` of `recording`. `resolver` names the frames; `observer` gets the progress.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read(
        recording: Recording,
        selection: Selection,
        resolver: Resolver,
        observer: &dyn Observer,
    ) -> Result<Self, FileError> {
        let mut events = Events::default();
        let profile = Profile::read_with(&recording, selection, resolver, observer, &mut events)?;
        Ok(Self::new(recording, profile, events))
    }

    /// The selected part of `recording`, whose sum is `profile`, and whose ticks are `events`.
    pub fn new(recording: Recording, profile: Profile, mut events: Events) -> Self {
        events.finish(&profile);
        let budget = OutputBudget::of_recording(recording.length());
        Self {
            recording,
            profile,
            events,
            budget,
        }
    }

    /// The same source with another `budget` for the output and for tables.
    #[must_use]
    pub fn with_budget(self, budget: OutputBudget) -> Self {
        Self { budget, ..self }
    }

    /// The budget for the output and for tables.
    pub fn budget(&self) -> &OutputBudget {
        &self.budget
    }

    /// The sum of the selected part of the recording.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The weight of a tick.
    pub fn weight(&self) -> Weight {
        Weight::of_tick(&self.profile.contents.info)
    }

    /// Calls `each` for all events. Events of one vCPU are in the order of time.
    ///
    /// # Errors
    /// The first error of `each`, and [`ExportError::TooMuch`].
    pub fn for_each(
        &self,
        mut each: impl FnMut(&Event) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.events.events.iter().try_for_each(|event| {
            self.budget.take(EVENT)?;
            each(event)
        })
    }

    /// Calls `each` for all events by time, whichever vCPU they are of; those of the same time in the order of the file. A recording has blocks of each vCPU's
    /// ticks, and ticks of a halted vCPU come once it runs again. perf sorts its events, and readers of its text refuse a thread whose times go
    /// backwards.
    ///
    /// # Errors
    /// As [`Self::for_each`].
    pub(super) fn for_each_by_time(
        &self,
        mut each: impl FnMut(&Event) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let mut order: Vec<&Event> = Vec::new();
        for event in &self.events.events {
            self.budget.take(EVENT)?;
            order.push(event);
        }
        order.sort_by_key(|event| event.time);
        order.into_iter().try_for_each(&mut each)
    }

    /// The thread of `event`.
    pub fn thread(&self, event: &Event) -> &EventThread {
        &self.events.threads[event.thread as usize]
    }

    /// The labels of the process of `event`.
    pub fn labels(&self, event: &Event) -> impl Iterator<Item = (&str, &str)> {
        let set = self
            .stack(event)
            .map(|stack| stack.labels)
            .unwrap_or_default();
        self.profile.labels().get(set)
    }

    /// How many threads there are: the numbers of events' threads are lower.
    pub(super) fn threads(&self) -> usize {
        self.events.threads.len()
    }

    /// How many stacks there are: the numbers of events' stacks are lower.
    pub fn stacks(&self) -> usize {
        self.profile.stacks.len()
    }

    /// The number of the stack of `event`, which is that of halted vCPUs behind all others.
    pub(super) fn stack_number(&self, event: &Event) -> usize {
        event.stack.map_or(self.stacks(), |stack| stack as usize)
    }

    /// Calls `each` for all looks at the guest's tasks, whatever is selected, while `observer` gets the progress. Returns how many bytes of the
    /// recording weren't read, because it was interrupted.
    ///
    /// # Errors
    /// As [`Recording::looks`], and the first error of `each`.
    pub fn looks(
        &self,
        observer: &dyn Observer,
        mut each: impl FnMut(&TaskLook) -> Result<(), ExportError>,
    ) -> Result<usize, ExportError> {
        let mut result = Ok(());
        let contents = self.recording.looks(observer, |look| {
            if result.is_ok() {
                result = each(look);
            }
        })?;
        result.map(|()| contents.unread)
    }

    /// The frames of `event`, innermost first. A stack that is cut short has a note after the guest's frames.
    pub fn frames(&self, event: &Event) -> Vec<Frame<'_>> {
        let Some(stack) = self.stack(event) else {
            return vec![self.profile.code.halted()];
        };
        let mut frames: Vec<Frame<'_>> = self.profile.frames(stack).collect();
        let cut = outermost_of_guest(&frames).filter(|_| stack.is_cut_short);
        if let Some((index, last)) = cut.and_then(|index| Some((index, frames.get(index)?))) {
            let note = self.profile.code.cut_short(last);
            frames.insert(index + 1, note);
        }
        frames
    }

    /// The stack of `event`; `None` for a halted vCPU.
    pub(super) fn stack(&self, event: &Event) -> Option<&StackSum> {
        self.profile.stacks.get(event.stack? as usize)
    }

    /// The frames of `event`, for tables that are kept in memory until all events are known.
    ///
    /// # Errors
    /// They don't fit into the budget.
    pub fn frames_to_keep(&self, event: &Event) -> Result<Vec<Frame<'_>>, ExportError> {
        let frames = self.frames(event);
        for frame in &frames {
            self.budget.take_frame(frame.name)?;
        }
        Ok(frames)
    }
}
