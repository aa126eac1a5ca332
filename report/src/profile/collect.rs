//! Recordings, summed up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use kvmprof_recording::{IDLE_PID, Mode, Sample, StackEnd, StackSummary};

use super::modes::{ModeCounts, sum_modes};
use super::sums::{Limits, Sums};
use super::{Selection, Selector};
use crate::symbolize::{Asked, Frame, MappingSet, Resolver};
use kvmprof_recording::file::{Contents, FileError, Observer, Recording, Unobserved};

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its name, that of its main thread if that was ever sampled; empty when unknown.
    pub name: String,
    /// Samples by mode.
    pub modes: ModeCounts,
}

impl Process {
    /// What it is called, whose pid is `pid`: a word in brackets for what is no process; empty when unknown.
    pub fn shown_name(&self, pid: i32) -> &str {
        match (pid, self.name.as_str()) {
            (-1, "") => "[unknown]",
            (IDLE_PID, "") => "[idle]",
            (_, name) => name,
        }
    }

    /// All of its samples.
    pub fn samples(&self) -> u64 {
        sum_modes(&self.modes)
    }
}

/// A call stack, innermost frame first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// How many frames are the kernel's, and how the parts end.
    pub summary: StackSummary,
    /// Its frames; the program counter alone where no stack was taken.
    pub frames: Vec<u64>,
    /// Whether the vCPU was in user mode.
    pub in_user_mode: bool,
    /// What was mapped where in the user's memory.
    pub mappings: MappingSet,
}

impl Stack {
    /// The stack of `sample`, whose frames are `frames`, where `mappings` are.
    pub fn of(sample: &Sample, frames: &[u64], mappings: MappingSet) -> Self {
        Self {
            summary: sample.stack,
            frames: if frames.is_empty() {
                vec![sample.pc]
            } else {
                frames.to_vec()
            },
            in_user_mode: sample.mode == Mode::User,
            // The kernel is the same everywhere.
            mappings: if usize::from(sample.stack.kernel) < frames.len()
                || sample.mode == Mode::User
            {
                mappings
            } else {
                MappingSet::default()
            },
        }
    }

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

    /// Whether frame number `index` is the kernel's.
    pub fn is_kernel(&self, index: usize) -> bool {
        !self.in_user_mode && (index == 0 || index < usize::from(self.summary.kernel))
    }
}

/// A frame of a stack. One address may be several, functions inlined into each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Its function.
    pub frame: Frame,
    /// Its address.
    pub address: u64,
    /// Bytes from the function's begin; `None` of inlined ones, and where no function is known.
    pub offset: Option<u64>,
    /// The address by the file itself; where there is no file, as it is.
    pub file_address: u64,
    /// Whether it is the kernel's.
    pub is_kernel: bool,
}

/// A recording, summed up.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// What there is besides samples.
    pub contents: Contents,
    /// What frames are called.
    pub resolver: Rc<Resolver>,
    /// What is looked at.
    pub selection: Selection,
    /// The processes, by pid; -1 is those that couldn't be told.
    pub processes: BTreeMap<i32, Process>,
    /// Samples by mode of each vCPU.
    pub vcpus: BTreeMap<u16, ModeCounts>,
    /// How many samples there are of each process, in each stack.
    pub stacks: HashMap<(i32, Stack), u64>,
    /// Idle ticks that need no sample.
    pub idle: u64,
}

impl Profile {
    /// Reads the recording at `path`: all of it, or the processes `pids` if there are any.
    ///
    /// # Errors
    /// As [`Recording::open`] and [`Recording::read`].
    pub fn of_file(path: &Path, pids: &[i32]) -> Result<Self, FileError> {
        Self::of_recording(&Recording::open(path)?, pids)
    }

    /// Sums up `recording`: all of it, or the processes `pids` if there are any. Names are the recording's own.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn of_recording(recording: &Recording, pids: &[i32]) -> Result<Self, FileError> {
        let resolver = Resolver::of(&recording.contents()?);
        let selection = Selection::of_processes(pids);
        Self::read(recording, selection, resolver, &Unobserved)
    }

    /// Sums up what `selection` wants of `recording`, whose frames `resolver` names, while `observer` looks on.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn read(
        recording: &Recording,
        selection: Selection,
        resolver: Resolver,
        observer: &dyn Observer,
    ) -> Result<Self, FileError> {
        let facts = recording.contents()?.facts;
        let mut selector = Selector::new(&facts, selection.time);
        let mut sums = Sums::new(Limits::NONE);
        let mut contents = recording.read_observed(observer, |ticks, frames| {
            let ticks = selection.only(&selector.select(ticks).0);
            let mappings = ticks.sample.map(|sample| resolver.mappings_of(&sample));
            sums.add(&ticks, frames, mappings.unwrap_or_default());
        })?;
        contents.account = selector.account();
        Ok(sums.into_profile(contents, Rc::new(resolver), selection))
    }

    /// Finds the names of all frames, while `observer` looks on; once it interrupts, the rest gets no source lines.
    pub fn resolve(&self, observer: &dyn Observer) {
        let mut all: Vec<Asked> = Vec::new();
        let mut seen = HashSet::new();
        for (pid, stack) in self.stacks.keys() {
            for (index, address) in stack.frames.iter().enumerate() {
                let asked = stack.asked(*pid, index, *address);
                if seen.insert((asked.mappings, *address, asked.is_kernel)) {
                    all.push(asked);
                }
            }
        }
        drop(seen);
        // What lies side by side in a file is read at once.
        all.sort_by_key(|asked| (asked.is_kernel, asked.mappings, asked.address));
        for (done, asked) in (0..).zip(&all) {
            if observer.advance(done, all.len() as u64).is_break() {
                self.resolver.hurry();
                return;
            }
            self.resolver.resolve(*asked);
        }
    }

    /// The functions of `stack` of process `pid`, innermost first.
    pub fn frames(&self, pid: i32, stack: &Stack) -> Vec<StackFrame> {
        let mut all = Vec::with_capacity(stack.frames.len());
        for (index, address) in stack.frames.iter().enumerate() {
            let asked = stack.asked(pid, index, *address);
            let resolved = self.resolver.resolve(asked);
            for frame in resolved.frames.iter() {
                all.push(StackFrame {
                    frame: frame.clone(),
                    address: *address,
                    offset: resolved.offset.filter(|_| !frame.is_inlined),
                    file_address: resolved.file_address,
                    is_kernel: asked.is_kernel,
                });
            }
        }
        all
    }

    /// All samples, and idle ticks without one.
    pub fn samples(&self) -> u64 {
        self.processes
            .values()
            .fold(0, |sum, process| sum.saturating_add(process.samples()))
    }

    /// What one must know of a recording that isn't whole, or wasn't read as a whole.
    pub fn incompleteness(&self) -> Option<String> {
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

    /// Whether the recording has symbols of the kernel.
    pub fn has_symbols(&self) -> bool {
        !self.resolver.tables().kernel.is_empty()
    }
}

impl Stack {
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
pub(super) mod testing {
    use kvmprof_recording::{COMM_LENGTH, Ticks};

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
        let resolver = Resolver::of(&contents);
        let selection = Selection::of_processes(pids);
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
        sums.add(&selection.only(&idle), &[], MappingSet::default());
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
            sums.add(&selection.only(&ticks), frames, MappingSet::default());
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
