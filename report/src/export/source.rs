//! The source of all exports: a recording's events in the order of the file, and the names of their frames.

use std::path::Path;

use super::ExportError;
use super::events::{Event, EventThread, Events};
use crate::budget::{OutputBudget, TooMuch};
use crate::model::{Frame, StackSum, outermost_of_guest};
use crate::profile::{Profile, Selection, Weight};
use crate::symbolize::Resolver;
use kvmprof_recording::file::{Observer, Recording, Unobserved};
use kvmprof_recording::tasks::TaskLook;

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
    /// As [`Recording::open`] and [`Self::read`].
    pub fn open(path: &Path, pids: &[i32]) -> Result<Self, ExportError> {
        let recording = Recording::open(path)?;
        let resolver = Resolver::from_contents(&recording.contents()?);
        let selection = Selection::from_pids(pids);
        Self::read(recording, selection, resolver, None, &Unobserved)
    }

    /// The `selection` of `recording`, with `limit` as of [`Events::new`]. `resolver` names the frames; `observer` gets the progress.
    ///
    /// # Errors
    /// As [`Recording::read`] and [`Self::new`].
    pub fn read(
        recording: Recording,
        selection: Selection,
        resolver: Resolver,
        limit: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Self, ExportError> {
        let mut events = Events::new(limit);
        let profile = Profile::read_with(&recording, selection, resolver, observer, &mut events)?;
        Ok(Self::new(recording, profile, events)?)
    }

    /// The selected part of `recording`, whose sum is `profile`, and whose ticks are `events`.
    ///
    /// # Errors
    /// The events don't fit into their budget.
    pub fn new(
        recording: Recording,
        profile: Profile,
        mut events: Events,
    ) -> Result<Self, TooMuch> {
        let budget = events.finish(&profile)?;
        Ok(Self {
            recording,
            profile,
            events,
            budget,
        })
    }

    /// The rest of the budget, for the output and for tables.
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
    /// The first error of `each`.
    pub fn for_each(
        &self,
        each: impl FnMut(&Event) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.events.events.iter().try_for_each(each)
    }

    /// Calls `each` for all events by time, whichever vCPU they are of; those of the same time in the order of the file. A recording has blocks of each vCPU's
    /// ticks, and ticks of a halted vCPU come once it runs again. perf sorts its events, and readers of its text refuse a thread whose times go
    /// backwards.
    ///
    /// # Errors
    /// As [`Self::for_each`].
    pub(super) fn for_each_by_time(
        &self,
        each: impl FnMut(&Event) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let mut order: Vec<&Event> = self.events.events.iter().collect();
        order.sort_by_key(|event| event.time);
        order.into_iter().try_for_each(each)
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
