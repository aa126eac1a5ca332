//! The model of a profile: the sums of a recording, or of several ones, by process, thread, vCPU and stack.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use kvmprof_recording::{COMM_LENGTH, IDLE_PID, Mode, Sample};

use super::block_sums::BlockSums;
use super::code::{Code, FrameKind, NodeId};
use super::filter::{Filter, StackFilter};
use super::frame::Frame;
use super::modes::{ModeCounts, sum_modes};
use super::parts::ThreadSamples;
use super::selection::Selection;
use super::selector::{Selector, Spread};
use super::sums::task_name;
use crate::symbolize::{LabelSet, Labels, Resolver};
use crate::text::visible;
use kvmprof_recording::file::{
    BlockTimes, Contents, FileError, Observer, Recording, RecordingInfo, Unobserved,
};

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its name: that of its main thread, or of another thread if the main thread has no sample; empty when unknown.
    pub name: String,
    /// Samples by mode.
    pub modes: ModeCounts,
}

impl Process {
    /// The name of the process with pid `pid`: a word in brackets if it isn't a process; empty when unknown.
    pub fn shown_name(&self, pid: i32) -> &str {
        match (pid, self.name.as_str()) {
            (-1, "") => "[unknown]",
            (IDLE_PID, "") => "[idle]",
            (_, name) => name,
        }
    }

    /// The process with pid `pid` in one word: `dd-130`, or `pid-130` if its name is unknown, or a word in brackets if it isn't a process.
    pub fn label(&self, pid: i32) -> String {
        match (self.name.as_str(), self.shown_name(pid)) {
            ("", "") => format!("pid-{pid}"),
            ("", word) => word.to_owned(),
            (name, _) => format!("{name}-{pid}"),
        }
    }

    /// All of its samples.
    pub fn samples(&self) -> u64 {
        sum_modes(&self.modes)
    }
}

/// One thread, as long as its process has these labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its process; -1 if it is unknown.
    pub pid: i32,
    /// Its id; -1 if it is unknown.
    pub tid: i32,
    /// Its last known id in its innermost pid namespace; `None` if that is the guest's first one, or unknown.
    pub inner_tid: Option<i32>,
    /// The labels of its process.
    pub labels: LabelSet,
    /// Its last known name, padded with NULs; all NUL when unknown.
    pub comm: [u8; COMM_LENGTH],
    /// Samples by mode.
    pub modes: ModeCounts,
}

impl Thread {
    /// Its name: a word in brackets if it isn't a thread; empty when unknown.
    pub fn shown_name(&self) -> String {
        match (self.pid, self.tid, task_name(&self.comm)) {
            (_, -1, name) if name.is_empty() => "[unknown]".to_owned(),
            (IDLE_PID, IDLE_PID, name) if name.is_empty() => "[idle]".to_owned(),
            (_, _, name) => name,
        }
    }

    /// It in one word, as [`Process::label`].
    pub fn label(&self) -> String {
        match (task_name(&self.comm), self.shown_name()) {
            (name, word) if !name.is_empty() => format!("{word}-{}", self.tid),
            (_, word) if !word.is_empty() => word,
            _ => format!("tid-{}", self.tid),
        }
    }
}

/// The samples of a process in a stack. Its number is its index in [`Profile::stacks`].
#[derive(Clone, Copy, Debug)]
pub struct StackSum {
    /// The process.
    pub pid: i32,
    /// The stack.
    pub node: NodeId,
    /// The mode of the vCPU.
    pub mode: Mode,
    /// The labels of the process.
    pub labels: LabelSet,
    /// Whether frames are missing at the guest's outer end.
    pub is_cut_short: bool,
    /// The number of samples.
    pub ticks: u64,
}

/// The index of the guest's outermost frame in `frames`. Frames that were cut off would follow it.
pub fn outermost_of_guest(frames: &[Frame<'_>]) -> Option<usize> {
    let is_host = |frame: &Frame<'_>| frame.kind == FrameKind::Host;
    frames.iter().rposition(|frame| !is_host(frame))
}

/// The selected part of a run of ticks.
#[derive(Clone, Copy, Debug)]
pub struct Selected {
    /// The ticks without a sample, and their times.
    pub spread: Spread,
    /// The sample.
    pub sample: Option<Sample>,
    /// The number of its stack in [`Profile::stacks`]; `None` if it is beyond the limits.
    pub stack: Option<u32>,
    /// The number of its thread in [`Profile::threads`].
    pub thread: Option<u32>,
}

/// Gets the selected ticks while a recording is summed up.
pub trait Watcher {
    /// Called before the first ticks of a recording of `length` bytes with the properties `info`: `selection` is its selected part, `resolver` names its frames.
    fn begin(
        &mut self,
        length: usize,
        info: &RecordingInfo,
        selection: &Selection,
        resolver: &Resolver,
    );

    /// The next run of ticks.
    fn take(&mut self, selected: &Selected);

    /// Called after the last ticks of `recording`, for what it has besides: `contents` is all but samples and looks, `selection` the selected part, and
    /// `observer` gets the progress.
    ///
    /// # Errors
    /// The recording can't be read.
    fn end(
        &mut self,
        _recording: &Recording,
        _contents: &Contents,
        _selection: &Selection,
        _observer: &dyn Observer,
    ) -> Result<(), FileError> {
        Ok(())
    }
}

/// A watcher that does nothing.
impl Watcher for () {
    fn begin(&mut self, _: usize, _: &RecordingInfo, _: &Selection, _: &Resolver) {}

    fn take(&mut self, _: &Selected) {}
}

/// Two watchers of the same ticks.
impl<One: Watcher, Other: Watcher> Watcher for (One, Other) {
    fn begin(
        &mut self,
        length: usize,
        info: &RecordingInfo,
        selection: &Selection,
        resolver: &Resolver,
    ) {
        self.0.begin(length, info, selection, resolver);
        self.1.begin(length, info, selection, resolver);
    }

    fn take(&mut self, selected: &Selected) {
        self.0.take(selected);
        self.1.take(selected);
    }

    fn end(
        &mut self,
        recording: &Recording,
        contents: &Contents,
        selection: &Selection,
        observer: &dyn Observer,
    ) -> Result<(), FileError> {
        self.0.end(recording, contents, selection, observer)?;
        self.1.end(recording, contents, selection, observer)
    }
}

/// A recording's sums.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The recording's contents besides samples.
    pub contents: Contents,
    /// Resolves frames to names.
    pub resolver: Rc<Resolver>,
    /// The selected part of the recording.
    pub selection: Selection,
    /// The processes, by pid; -1 for unknown processes.
    pub processes: BTreeMap<i32, Process>,
    /// The threads, in the order of their first samples.
    pub threads: Vec<Thread>,
    /// Samples by mode of each vCPU.
    pub vcpus: BTreeMap<u16, ModeCounts>,
    /// The number of samples of each process in each stack, in the order of their first samples. Those that aren't selected have none.
    pub stacks: Vec<StackSum>,
    /// The same samples by thread and vCPU, if they were [counted](super::ThreadCounts) while the recording was read.
    pub parts: Vec<ThreadSamples>,
    /// What these stacks consist of. Recordings that are counted together have the same.
    pub code: Rc<Code>,
    /// Idle ticks without samples.
    pub idle: u64,
    /// Whether symbols of the kernel are known.
    pub has_symbols: bool,
    /// The length of the recording's file, in bytes.
    pub file_length: usize,
    /// The options of the command line by which functions have their names, for a command that prints the same.
    pub naming: Vec<String>,
    /// The name of the recording's file if there are several recordings; else empty.
    pub file: String,
    /// Further recordings, which all tables and pictures count together with this one. Their own lists are empty.
    pub merged: Vec<Profile>,
}

impl Profile {
    /// Reads the recording at `path`: all of it, or only the processes `pids` if there are any.
    ///
    /// # Errors
    /// As [`Recording::open`] and [`Recording::read`].
    pub fn from_file(path: &Path, pids: &[i32]) -> Result<Self, FileError> {
        Self::from_recording(&Recording::open(path)?, pids)
    }

    /// Sums up `recording`: all of it, or only the processes `pids` if there are any. Names are the recording's own.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn from_recording(recording: &Recording, pids: &[i32]) -> Result<Self, FileError> {
        let resolver = Resolver::from_contents(&recording.contents()?);
        let selection = Selection::from_pids(pids);
        Self::read(recording, selection, resolver, &Unobserved)
    }

    /// Sums up the `selection` of `recording`. `resolver` names the frames; `observer` gets the progress.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read(
        recording: &Recording,
        selection: Selection,
        resolver: Resolver,
        observer: &dyn Observer,
    ) -> Result<Self, FileError> {
        Self::read_with(recording, selection, resolver, observer, &mut ())
    }

    /// The same, while `watcher` gets all selected ticks, in the order of the recording.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read_with(
        recording: &Recording,
        selection: Selection,
        resolver: Resolver,
        observer: &dyn Observer,
        watcher: &mut dyn Watcher,
    ) -> Result<Self, FileError> {
        Self::read_observed(
            recording,
            selection,
            resolver,
            [observer, &Unobserved],
            watcher,
        )
    }

    /// The same with observers of two steps: reading, and finding names. After the latter interrupts, further frames get no source lines.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read_observed(
        recording: &Recording,
        selection: Selection,
        resolver: Resolver,
        [reading, naming]: [&dyn Observer; 2],
        watcher: &mut dyn Watcher,
    ) -> Result<Self, FileError> {
        let info = recording.info()?;
        watcher.begin(recording.length(), &info, &selection, &resolver);
        let filter = Filter::new(&selection, recording, reading)?;
        let selector = RefCell::new(Selector::new(&info, &selection));
        let mut sums = BlockSums::new(recording.length(), &resolver);
        let mut stacks = StackFilter::new(&selection, &resolver);
        let mut wants = |times: &BlockTimes| selector.borrow_mut().wants(times);
        let is_part = selection.is_part();
        let wanted: Option<&mut dyn FnMut(&BlockTimes) -> bool> =
            if is_part { Some(&mut wants) } else { None };
        let mut contents = recording.read_wanted(reading, wanted, |ticks, frames, numbers| {
            let spread = selector.borrow_mut().spread(ticks);
            let mut ticks = filter.only(&spread.selected());
            let mut stack = None;
            if let Some(sample) = &ticks.sample {
                stack = sums.stack(sample, frames, numbers);
                if stacks
                    .as_mut()
                    .is_some_and(|wanted| !wanted.wants(stack, &sums.sums.stacks))
                {
                    ticks.sample = None;
                }
            }
            let thread = sums.add(&ticks, stack, numbers);
            watcher.take(&Selected {
                spread: spread.only(ticks.sample, filter.wants_idle()),
                sample: ticks.sample,
                stack,
                thread,
            });
        })?;
        contents.account = selector.borrow().account();
        drop(stacks);
        watcher.end(recording, &contents, &selection, reading)?;
        let sums = sums.sums;
        let resolver = Rc::new(resolver);
        Ok(Self {
            file_length: recording.length(),
            ..sums.into_profile(contents, resolver, selection, naming)
        })
    }

    /// The length of all recordings, in bytes.
    pub fn length(&self) -> usize {
        let lengths = self.recordings().map(|one| one.file_length);
        lengths.fold(0, usize::saturating_add)
    }

    /// The stacks that have samples.
    pub fn stacks(&self) -> impl Iterator<Item = &StackSum> {
        self.stacks.iter().filter(|stack| stack.ticks > 0)
    }

    /// The functions of `stack`, innermost first.
    pub fn frames(&self, stack: &StackSum) -> impl Iterator<Item = Frame<'_>> {
        self.code.frames(stack.node)
    }

    /// The labels of processes.
    pub fn labels(&self) -> &Labels {
        &self.resolver.tables().labels
    }

    /// A warning if a recording isn't whole, or wasn't read to its end.
    pub fn incompleteness(&self) -> Option<String> {
        if self.merged.is_empty() {
            return self.own_incompleteness();
        }
        self.recordings().find_map(|recording| {
            let warning = recording.own_incompleteness()?;
            Some(format!("{}: {warning}", visible(&recording.file)))
        })
    }

    fn own_incompleteness(&self) -> Option<String> {
        let contents = &self.contents;
        match (contents.unread, contents.closed) {
            (0, Some(_)) => None,
            (0, None) => Some(format!(
                "The recording was cut off: this is what was written until then ({} bytes more are no whole block)",
                contents.cut_off
            )),
            (unread, _) => Some(format!(
                "Interrupted: this is what was read until then ({unread} bytes are unread)"
            )),
        }
    }

    /// Whether there are symbols of the kernel in all recordings.
    pub fn has_symbols(&self) -> bool {
        self.recordings().all(|recording| recording.has_symbols)
    }
}
