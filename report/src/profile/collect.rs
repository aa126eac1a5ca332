//! Sums samples up.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use kvmprof_devices::profiling::{COMM_LENGTH, Mode, Sample, StackEnd, StackSummary, Ticks};

use super::Symbols;
use crate::file::{Contents, FileError, Recording};

/// The pid of what runs when nothing does.
const IDLE: i32 = 0;

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its name, that of its main thread if that was ever sampled; empty when unknown.
    pub name: String,
    /// Samples in user mode, in the kernel, in interrupts, idle.
    pub modes: [u64; 4],
}

impl Process {
    /// All of its samples.
    pub fn samples(&self) -> u64 {
        self.modes.iter().sum()
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
}

impl Stack {
    /// The stack of `sample`, whose frames are `frames`.
    pub fn of(sample: &Sample, frames: &[u64]) -> Self {
        Self {
            summary: sample.stack,
            frames: if frames.is_empty() {
                vec![sample.pc]
            } else {
                frames.to_vec()
            },
            in_user_mode: sample.mode == Mode::User,
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

/// A recording, summed up.
#[derive(Debug, Default)]
pub struct Profile {
    /// What there is besides samples.
    pub contents: Contents,
    /// The symbols of the guest's kernel.
    pub symbols: Symbols,
    /// The processes, by pid; -1 is those that couldn't be told.
    pub processes: BTreeMap<i32, Process>,
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

    /// Sums up `recording`: all of it, or the processes `pids` if there are any.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn of_recording(recording: &Recording, pids: &[i32]) -> Result<Self, FileError> {
        let mut sums = Sums::new(pids);
        let contents = recording.read(|ticks, frames| sums.add(ticks, frames))?;
        Ok(sums.finish(contents))
    }

    /// All samples, and idle ticks without one.
    pub fn samples(&self) -> u64 {
        self.processes.values().map(Process::samples).sum()
    }
}

struct Sums<'a> {
    pids: &'a [i32],
    processes: BTreeMap<i32, (Process, bool)>,
    stacks: HashMap<(i32, Stack), u64>,
    idle: u64,
}

impl<'a> Sums<'a> {
    fn new(pids: &'a [i32]) -> Self {
        Self {
            pids,
            processes: BTreeMap::new(),
            stacks: HashMap::new(),
            idle: 0,
        }
    }

    fn wants(&self, pid: i32) -> bool {
        self.pids.is_empty() || self.pids.contains(&pid)
    }

    fn add(&mut self, ticks: &Ticks, frames: &[u64]) {
        if self.wants(IDLE) && ticks.idle > 0 {
            self.idle = self.idle.saturating_add(ticks.idle);
            let (process, _) = self.processes.entry(IDLE).or_default();
            process.modes[3] = process.modes[3].saturating_add(ticks.idle);
        }
        if let Some(sample) = &ticks.sample
            && self.wants(sample.pid)
        {
            self.add_sample(sample, frames);
        }
    }

    fn add_sample(&mut self, sample: &Sample, frames: &[u64]) {
        let (process, by_main_thread) = self.processes.entry(sample.pid).or_default();
        let is_main_thread = sample.tid == sample.pid;
        if sample.comm[0] != 0 && (is_main_thread || !*by_main_thread) {
            process.name = task_name(&sample.comm);
            *by_main_thread = is_main_thread;
        }
        let mode = match sample.mode {
            Mode::User => 0,
            Mode::Kernel => 1,
            Mode::Interrupt => 2,
            Mode::Idle => 3,
        };
        process.modes[mode] += 1;
        let stack = Stack::of(sample, frames);
        *self.stacks.entry((sample.pid, stack)).or_default() += 1;
    }

    fn finish(self, contents: Contents) -> Profile {
        Profile {
            symbols: Symbols::parse(&contents.symbols),
            contents,
            processes: self
                .processes
                .into_iter()
                .map(|(pid, (process, _))| (pid, process))
                .collect(),
            stacks: self.stacks,
            idle: self.idle,
        }
    }
}

/// A task's name; bytes that would break a line or a terminal are shown as `?`.
pub fn task_name(comm: &[u8; COMM_LENGTH]) -> String {
    comm.iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        })
        .collect()
}

/// A profile to test with: pids 7 and 8, idle time, a stack in the kernel that leads to the user.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub fn comm(name: &str) -> [u8; COMM_LENGTH] {
        let mut comm = [0; COMM_LENGTH];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        comm
    }

    pub fn profile(pids: &[i32]) -> Profile {
        let mut sums = Sums::new(pids);
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
        sums.add(&idle, &[]);
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
            sums.add(&ticks, frames);
        }
        sums.finish(Contents {
            symbols: "1000 T entry\n2000 t copy\n".to_owned(),
            ..Contents::default()
        })
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
