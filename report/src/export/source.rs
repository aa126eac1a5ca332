//! The source of all exports: a recording's events in the order of the file, and the names of their frames.

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;

use kvmprof_recording::{IDLE_PID, Mode, Sample};

use super::{ExportError, Library};
use crate::profile::{
    CUT_SHORT, HALTED, HALTED_MODULE, Process, Profile, Selector, Stack, StackFrame, StackView,
    Weight, outermost_of_guest, task_name,
};
use crate::room::Room;
use crate::symbolize::MappingSet;
use kvmprof_recording::file::{BlockTimes, FileError, Observer, Recording, Unobserved};
use kvmprof_recording::tasks::TaskLook;

/// Bytes that an event takes in an export's tables, beside those of its stack. Formats differ.
const EVENT: usize = 64;
/// The name of a thread without a known name.
const UNKNOWN: &str = "[unknown]";

/// A recording to export.
#[derive(Debug)]
pub struct Source {
    recording: Recording,
    profile: Profile,
    room: Room,
}

/// Ticks of one vCPU: one sample, or consecutive ticks for which the vCPU was halted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time in ns of CLOCK_MONOTONIC. Of consecutive ticks it is the first one's, computed from the vCPU's last
    /// sample.
    pub time: u64,
    /// The number of ticks.
    pub ticks: u64,
    /// The vCPU's index.
    pub vcpu: u16,
    /// The mode of the vCPU.
    pub mode: Mode,
    /// Process id, -1 when unknown, 0 for a halted vCPU.
    pub pid: i32,
    /// Thread id, -1 when unknown, 0 for a halted vCPU.
    pub tid: i32,
    /// The thread's name, with characters that can't be shown replaced. For a halted vCPU it is that of process 0.
    pub comm: String,
    /// Its stack; `None` for a halted vCPU.
    pub stack: Option<Stack>,
    /// Whether it is a sample with interrupts off ([`Sample::has_interrupts_off`]).
    pub has_interrupts_off: bool,
}

impl Event {
    fn from_sample(sample: &Sample, frames: &[u64], mappings: MappingSet) -> Self {
        let comm = task_name(&sample.comm);
        Self {
            time: sample.time,
            ticks: 1,
            vcpu: sample.vcpu,
            mode: sample.mode,
            pid: sample.pid,
            tid: sample.tid,
            comm: if comm.trim().is_empty() {
                UNKNOWN.to_owned()
            } else {
                comm
            },
            stack: Some(StackView::new(sample, frames, mappings).to_stack()),
            has_interrupts_off: sample.has_interrupts_off(),
        }
    }

    /// Ticks of a halted vCPU. `name` is that of its process 0.
    fn from_idle(vcpu: u16, ticks: u64, time: u64, name: &str) -> Self {
        Self {
            time,
            ticks,
            vcpu,
            mode: Mode::Idle,
            pid: 0,
            tid: 0,
            comm: name.to_owned(),
            stack: None,
            has_interrupts_off: false,
        }
    }
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// The function, the address if the function is unknown, or a note in brackets.
    pub name: Cow<'a, str>,
    /// The address; 0 for a note.
    pub address: u64,
    /// The offset from the function's begin; `None` if the function is unknown.
    pub offset: Option<u64>,
    /// The address within its file; without a file, the address itself.
    pub file_address: u64,
    /// Whether it is a kernel frame.
    pub is_kernel: bool,
    /// `[kernel]`, a kernel module in brackets, or a file's name; `[user]` when unknown.
    pub module: Cow<'a, str>,
    /// The source file and line, if debug information has them.
    pub source: Option<(Cow<'a, str>, u32)>,
    /// Whether it is inlined into the next frame, which has the same address.
    pub is_inlined: bool,
}

impl Frame<'_> {
    fn note(text: &'static str, module: &'static str, is_kernel: bool) -> Self {
        Self {
            name: text.into(),
            address: 0,
            offset: None,
            file_address: 0,
            is_kernel,
            module: module.into(),
            source: None,
            is_inlined: false,
        }
    }

    /// Whether it is a note in brackets instead of code.
    pub(super) fn is_note(&self) -> bool {
        self.address == 0 && self.name.starts_with('[')
    }

    /// Converts one frame of a stack.
    pub(super) fn new(stack_frame: StackFrame) -> Self {
        let StackFrame {
            frame,
            address,
            offset,
            file_address,
            is_kernel,
            is_host: _,
        } = stack_frame;
        let source = frame.source.as_ref();
        Self {
            name: frame.function.as_ref().to_owned().into(),
            address,
            offset,
            file_address,
            is_kernel,
            module: frame.module.as_ref().to_owned().into(),
            source: source.map(|source| (source.file.as_ref().to_owned().into(), source.line)),
            is_inlined: frame.is_inlined,
        }
    }
}

/// The index of the last frame of `stack` before those that were cut off; `None` if none were.
fn cut_behind(stack: &Stack, frames: &[StackFrame]) -> Option<usize> {
    outermost_of_guest(frames).filter(|_| stack.is_cut_short())
}

impl Source {
    /// Opens the recording at `path`, with all processes or only `pids`.
    ///
    /// # Errors
    /// As [`Recording::open`] and [`Recording::read`].
    pub fn open(path: &Path, pids: &[i32]) -> Result<Self, FileError> {
        let recording = Recording::open(path)?;
        let profile = Profile::from_recording(&recording, pids)?;
        Ok(Self::new(recording, profile))
    }

    /// The selected part of `recording`, whose sum is `profile`.
    pub fn new(recording: Recording, profile: Profile) -> Self {
        let room = Room::of_recording(recording.length());
        Self {
            recording,
            profile,
            room,
        }
    }

    /// The same source with another `room` for the output and for tables.
    #[must_use]
    pub fn with_room(self, room: Room) -> Self {
        Self { room, ..self }
    }

    /// The room for the output and for tables.
    pub fn room(&self) -> &Room {
        &self.room
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
    /// As [`Recording::read`], the first error of `each`, and [`ExportError::TooMuch`].
    pub fn for_each(
        &self,
        each: impl FnMut(&Event) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.for_each_observed(&Unobserved, each).map(|_| ())
    }

    /// The same, while `observer` gets the progress. Returns the number of bytes that weren't read because the observer interrupted.
    ///
    /// # Errors
    /// As [`Self::for_each`].
    pub fn for_each_observed(
        &self,
        observer: &dyn Observer,
        mut each: impl FnMut(&Event) -> Result<(), ExportError>,
    ) -> Result<usize, ExportError> {
        let Profile {
            contents,
            selection,
            filter,
            resolver,
            ..
        } = &self.profile;
        let selector = RefCell::new(Selector::new(&contents.info, selection));
        let mut result = Ok(());
        let unnamed = Process::default();
        let idle = self.profile.processes.get(&IDLE_PID);
        let idle = idle.unwrap_or(&unnamed).shown_name(IDLE_PID);
        let mut each = |event: &Event| {
            self.room.take(EVENT)?;
            each(event)
        };
        let wanted = |times: &BlockTimes| selector.borrow_mut().wants(times);
        let read = self
            .recording
            .read_wanted(observer, wanted, |ticks, frames| {
                let (ticks, begin) = selector.borrow_mut().select(ticks);
                let ticks = filter.only(&ticks, frames, resolver);
                if result.is_ok() && ticks.idle > 0 {
                    result = each(&Event::from_idle(ticks.vcpu, ticks.idle, begin, idle));
                }
                if let Some(sample) = &ticks.sample
                    && result.is_ok()
                {
                    let mappings = resolver.mappings_of(sample);
                    result = each(&Event::from_sample(sample, frames, mappings));
                }
            });
        let unread = read?.unread;
        result.map(|()| unread)
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

    /// The frames of the stack in which a task waits, innermost first. `addresses` are those of a look.
    pub(crate) fn frames_of_task(&self, addresses: &[u64]) -> Vec<Frame<'static>> {
        let frames = self.profile.frames_of_task(addresses).into_iter();
        frames.map(Frame::new).collect()
    }

    /// The frames of `event`, innermost first. A stack that is cut short has a note after the guest's frames.
    pub fn frames<'a>(&'a self, event: &Event) -> Vec<Frame<'a>> {
        let Some(stack) = &event.stack else {
            return vec![Frame::note(HALTED, HALTED_MODULE, true)];
        };
        let frames = self.profile.frames(event.pid, stack);
        let cut = cut_behind(stack, &frames);
        let mut frames: Vec<Frame<'a>> = frames.into_iter().map(Frame::new).collect();
        if let Some((index, last)) = cut.and_then(|index| Some((index, frames.get(index)?))) {
            let mut note = Frame::note(CUT_SHORT, "", last.is_kernel);
            note.module = last.module.clone();
            frames.insert(index + 1, note);
        }
        frames
    }

    /// What `of` says of each of the [`Self::frames`]; `None` for notes.
    pub(super) fn of_frames<T>(
        &self,
        event: &Event,
        of: impl Fn(&Stack, &StackFrame) -> Option<T>,
    ) -> Vec<Option<T>> {
        let Some(stack) = &event.stack else {
            return vec![None];
        };
        let frames = self.profile.frames(event.pid, stack);
        let mut all: Vec<_> = frames.iter().map(|frame| of(stack, frame)).collect();
        if let Some(index) = cut_behind(stack, &frames) {
            all.insert(index + 1, None);
        }
        all
    }

    /// The library of each of the [`Self::frames`], and the address in it.
    pub(super) fn libraries(&self, event: &Event) -> Vec<Option<(Library, u32)>> {
        self.of_frames(event, |stack, frame| {
            let library = Library::of(&self.profile, stack, frame)?;
            let address = library.relative(frame)?;
            Some((library, address))
        })
    }

    /// The frames of `event`, for tables that are kept in memory until all events are known.
    ///
    /// # Errors
    /// They don't fit into the room.
    pub fn frames_to_keep<'a>(&'a self, event: &Event) -> Result<Vec<Frame<'a>>, ExportError> {
        let frames = self.frames(event);
        for frame in &frames {
            self.room.take_frame(&frame.name)?;
        }
        Ok(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_a_name_is_called_something() {
        let event = Event::from_sample(&Sample::default(), &[], MappingSet::default());
        assert_eq!(event.comm, "[unknown]");
        assert_eq!(event.stack.unwrap().frames, [0]);
    }
}
