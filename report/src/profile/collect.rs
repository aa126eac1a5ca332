//! Sums up recordings.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use kvmprof_recording::{COMM_LENGTH, IDLE_PID, Mode, Sample, StackEnd, StackSummary};

use super::modes::{ModeCounts, sum_modes};
use super::selection::Spread;
use super::sums::{Limits, Sums, task_name};
use super::{Filter, Selection, Selector, StackCounts};
use crate::symbolize::{Asked, Frame, MappingSet, Resolver};
use crate::text::visible;
use kvmprof_recording::file::{
    BlockTimes, Contents, FileError, Observer, Recording, RecordingInfo, Unobserved,
};

/// Maximum number of frames that are resolved ahead.
const MAX_AHEAD: usize = 1 << 20;

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

/// One thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its last known name, padded with NULs; all NUL when unknown.
    pub comm: [u8; COMM_LENGTH],
    /// Samples by mode.
    pub modes: ModeCounts,
}

impl Thread {
    /// The name of the thread with these ids: a word in brackets if it isn't one; empty when unknown.
    pub fn shown_name(&self, pid: i32, tid: i32) -> String {
        match (pid, tid, task_name(&self.comm)) {
            (_, -1, name) if name.is_empty() => "[unknown]".to_owned(),
            (IDLE_PID, IDLE_PID, name) if name.is_empty() => "[idle]".to_owned(),
            (_, _, name) => name,
        }
    }
}

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
}

/// A frame of a stack. Functions that are inlined into each other have frames with the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Its function.
    pub frame: Frame,
    /// Its address.
    pub address: u64,
    /// The offset from the function's begin; `None` for inlined functions, and if the function is unknown.
    pub offset: Option<u64>,
    /// The address within its file; without a file, the address itself.
    pub file_address: u64,
    /// Whether it is a kernel frame. Frames of the host count as such.
    pub is_kernel: bool,
    /// Whether it is one of the host's, below the guest's.
    pub is_host: bool,
}

/// The index of the guest's outermost frame in `frames`. Frames that were cut off would follow it.
pub fn outermost_of_guest(frames: &[StackFrame]) -> Option<usize> {
    frames.iter().rposition(|frame| !frame.is_host)
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
}

/// Gets the selected ticks while a recording is summed up.
pub trait Watcher {
    /// Called before the first ticks: `selection` is the selected part of the recording, `info` has its properties, `resolver` names its frames.
    fn begin(&mut self, info: &RecordingInfo, selection: &Selection, resolver: &Resolver);

    /// The next run of ticks.
    fn take(&mut self, selected: &Selected);
}

/// A watcher that does nothing.
impl Watcher for () {
    fn begin(&mut self, _: &RecordingInfo, _: &Selection, _: &Resolver) {}

    fn take(&mut self, _: &Selected) {}
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
    /// Decides which samples of the recording are selected.
    pub filter: Rc<Filter>,
    /// The processes, by pid; -1 for unknown processes.
    pub processes: BTreeMap<i32, Process>,
    /// The threads, by pid and tid.
    pub threads: BTreeMap<(i32, i32), Thread>,
    /// Samples by mode of each vCPU.
    pub vcpus: BTreeMap<u16, ModeCounts>,
    /// The number of samples of each process in each stack.
    pub stacks: StackCounts,
    /// Idle ticks without samples.
    pub idle: u64,
    /// The length of the recording's file, in bytes.
    pub file_length: usize,
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
        let info = recording.contents()?.info;
        watcher.begin(&info, &selection, &resolver);
        let filter = Filter::new(&selection, recording, observer)?;
        let selector = RefCell::new(Selector::new(&info, &selection));
        let mut sums = Sums::new(Limits::of_recording(recording.length()));
        let wanted = |times: &BlockTimes| selector.borrow_mut().wants(times);
        let mut contents = recording.read_wanted(observer, wanted, |ticks, frames| {
            let spread = selector.borrow_mut().spread(ticks);
            let ticks = filter.only(&spread.selected(), frames, &resolver);
            let mappings = ticks.sample.map(|sample| resolver.mappings_of(&sample));
            let stack = sums.add(&ticks, frames, mappings.unwrap_or_default());
            watcher.take(&Selected {
                spread: spread.only(ticks.sample, filter.wants_idle()),
                sample: ticks.sample,
                stack,
            });
        })?;
        contents.account = selector.borrow().account();
        Ok(Self {
            filter: Rc::new(filter),
            file_length: recording.length(),
            ..sums.into_profile(contents, Rc::new(resolver), selection)
        })
    }

    /// The length of all recordings, in bytes.
    pub fn length(&self) -> usize {
        let lengths = self.recordings().map(|one| one.file_length);
        lengths.fold(0, usize::saturating_add)
    }

    /// Resolves all frames. `observer` gets the progress; after it interrupts, further frames get no source lines.
    pub fn resolve(&self, observer: &dyn Observer) {
        let mut all: Vec<Asked> = Vec::new();
        let mut seen = HashSet::new();
        for (pid, stack) in self.stacks.keys() {
            for asked in stack.asked_all(*pid) {
                // Further addresses are resolved when they are needed.
                if all.len() < MAX_AHEAD
                    && seen.insert((asked.mappings, asked.address, asked.is_kernel))
                {
                    all.push(asked);
                }
            }
        }
        drop(seen);
        // Addresses that are close in a file are read together.
        all.sort_by_key(|asked| (asked.is_kernel, asked.mappings, asked.address));
        for (done, asked) in (0..).zip(&all) {
            if observer.advance(done, all.len() as u64).is_break() {
                self.resolver.skip_source_lines();
                return;
            }
            self.resolver.resolve(*asked);
        }
    }

    /// The functions of `stack` of process `pid`, innermost first.
    pub fn frames(&self, pid: i32, stack: &Stack) -> Vec<StackFrame> {
        let mut all = Vec::with_capacity(stack.frames.len());
        for (index, asked) in stack.asked_all(pid).enumerate() {
            self.add_frames(asked, stack.is_host(index), &mut all);
        }
        all
    }

    /// The functions of the stack of the kernel in which a task waits, innermost first. `addresses` are those of a look at tasks.
    pub fn frames_of_task(&self, addresses: &[u64]) -> Vec<StackFrame> {
        let mut all = Vec::with_capacity(addresses.len());
        for address in addresses {
            self.add_frames(Asked::in_kernel(IDLE_PID, *address), false, &mut all);
        }
        all
    }

    /// Adds the functions at one address, innermost first.
    fn add_frames(&self, asked: Asked, is_host: bool, all: &mut Vec<StackFrame>) {
        let resolved = self.resolver.resolve(asked);
        all.extend(resolved.frames.iter().map(|frame| StackFrame {
            frame: frame.clone(),
            address: asked.address,
            offset: resolved.offset.filter(|_| !frame.is_inlined),
            file_address: resolved.file_address,
            is_kernel: asked.is_kernel,
            is_host,
        }));
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
        self.recordings()
            .all(|recording| !recording.resolver.tables().kernel.is_empty())
    }
}

impl Stack {
    /// The frames of the stack to resolve, as frames of process `pid`, innermost first.
    pub(super) fn asked_all(&self, pid: i32) -> impl Iterator<Item = Asked> {
        let frames = self.frames.iter().enumerate();
        frames.map(move |(index, address)| self.asked(pid, index, *address))
    }

    fn asked(&self, pid: i32, index: usize, address: u64) -> Asked {
        Asked {
            pid,
            mappings: self.mappings,
            address,
            is_kernel: self.is_kernel(index),
        }
    }
}

/// A profile to test with: pids 7 and 8, idle time, a stack in the kernel that leads to the user.
#[cfg(test)]
pub(crate) mod testing {
    use kvmprof_recording::Ticks;

    use super::*;

    pub fn comm(name: &str) -> [u8; COMM_LENGTH] {
        let mut comm = [0; COMM_LENGTH];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        comm
    }

    pub fn profile(pids: &[i32]) -> Profile {
        let symbols = "1000 T entry\n2000 t copy\t[fs]\n".to_owned();
        let contents = Contents {
            symbol_ends: vec![symbols.len()],
            symbols,
            ..Contents::default()
        };
        let resolver = Resolver::from_contents(&contents);
        let selection = Selection::from_pids(pids);
        let filter = Filter::without_names(&selection);
        let mut sums = Sums::new(Limits::NONE);
        let kernel = Sample {
            pid: 7,
            tid: 9,
            mode: Mode::Kernel,
            comm: comm("worker"),
            pc: 0x2004,
            stack: StackSummary {
                kernel: 3,
                user: 1,
                host: 0,
                kernel_end: StackEnd::Complete,
                user_end: StackEnd::Broken,
            },
            ..Sample::default()
        };
        let user = Sample {
            pid: 7,
            tid: 7,
            mode: Mode::User,
            comm: comm("main;one"),
            pc: 0x40,
            ..Sample::default()
        };
        let other = Sample {
            pid: 8,
            tid: 8,
            mode: Mode::Interrupt,
            comm: comm("other"),
            pc: 0x1001,
            ..Sample::default()
        };
        let idle = Ticks {
            idle: 2,
            ..Ticks::default()
        };
        let idle = filter.only(&idle, &[], &resolver);
        sums.add(&idle, &[], MappingSet::default());
        for (sample, frames) in [
            (kernel, [0x2004, 0x1008, 0x1004, 0x50].as_slice()),
            (kernel, &[0x2004, 0x1008, 0x1004, 0x50]),
            (user, &[]),
            (other, &[]),
        ] {
            let ticks = Ticks {
                sample: Some(sample),
                ..Ticks::default()
            };
            let ticks = filter.only(&ticks, frames, &resolver);
            sums.add(&ticks, frames, MappingSet::default());
        }
        sums.into_profile(contents, Rc::new(resolver), selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_up_by_process() {
        let profile = testing::profile(&[]);
        assert_eq!(profile.samples(), 6);
        let rows: Vec<_> = profile
            .processes
            .iter()
            .map(|(pid, process)| (*pid, process.name.as_str(), process.modes))
            .collect();
        assert_eq!(
            rows,
            [
                (0, "", [0, 0, 0, 2]),
                (7, "main;one", [1, 2, 0, 0]),
                (8, "other", [0, 0, 1, 0])
            ]
        );
        assert_eq!(profile.stacks.len(), 3);
    }

    #[test]
    fn pids_can_be_chosen() {
        let profile = testing::profile(&[8]);
        assert_eq!(profile.samples(), 1);
        assert_eq!(profile.idle, 0);
    }
}
