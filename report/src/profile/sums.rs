//! Sums samples up: by process, by vCPU and by stack.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use foldhash::fast::RandomState;
use kvmprof_abi::text;
use kvmprof_recording::file::Contents;
use kvmprof_recording::{COMM_LENGTH, IDLE_PID, Mode, Sample, Ticks};

use super::modes::{ModeCounts, add_modes, sum_modes};
use super::names::ProcessNames;
use super::{Process, Profile, Selection, StackCounts, StackView, Thread};
use crate::symbolize::{MappingSet, Resolver};

/// The ticks of one vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuTicks {
    /// Ticks by mode.
    pub modes: ModeCounts,
    /// Ticks at which the host didn't run it.
    pub stolen: u64,
    /// Ticks missed for another reason.
    pub lost: u64,
}

impl VcpuTicks {
    /// Adds the ticks of another part of the time.
    pub fn add(&mut self, other: &Self) {
        add_modes(&mut self.modes, other.modes);
        self.stolen = self.stolen.saturating_add(other.stolen);
        self.lost = self.lost.saturating_add(other.lost);
    }

    /// Ticks with a known mode.
    pub fn known(&self) -> u64 {
        sum_modes(&self.modes)
    }

    /// All of its ticks.
    pub fn total(&self) -> u64 {
        self.known()
            .saturating_add(self.stolen)
            .saturating_add(self.lost)
    }
}

/// Maximum numbers of processes, stacks and frames with sums of their own. Further ones are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processes.
    pub processes: usize,
    /// Threads; ticks of further ones are in no thread's sum.
    pub threads: usize,
    /// Stacks.
    pub stacks: usize,
    /// Frames of all stacks. Beyond that, new stacks have only their innermost frame.
    pub frames: usize,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        processes: usize::MAX,
        threads: usize::MAX,
        stacks: usize::MAX,
        frames: usize::MAX,
    };

    /// The limits of a recording of `length` bytes. No recording of a recorder has more frames. In a hostile one, each of a million processes
    /// can have the same long stack.
    pub fn of_recording(length: usize) -> Self {
        Self {
            frames: length
                .saturating_mul(FRAMES_FOR_EACH_BYTE)
                .max(LEAST_FRAMES),
            ..Self::NONE
        }
    }
}

/// The maximum number of frames that are kept of a recording: a part for each of its bytes, and a part for any recording. A frame takes at least a
/// byte, mostly several, which compression reduces to a third.
const FRAMES_FOR_EACH_BYTE: usize = 4;
const LEAST_FRAMES: usize = 1 << 20;

/// Samples, summed up.
#[derive(Clone, Debug)]
pub struct Sums {
    /// The sums by vCPU.
    pub vcpus: BTreeMap<u16, VcpuTicks>,
    /// The sums by pid; -1 for unknown processes. The processes have no names yet.
    pub processes: BTreeMap<i32, (Process, ProcessNames)>,
    /// The sums by pid and tid.
    pub threads: HashMap<(i32, i32), Thread, RandomState>,
    /// The number of samples of each process in each stack.
    pub stacks: StackCounts,
    /// Idle ticks without a sample.
    pub idle: u64,
    /// The number of samples beyond the limits.
    pub elsewhere: u64,
    frames: usize,
    limits: Limits,
}

impl Sums {
    /// Empty sums with these `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            vcpus: BTreeMap::new(),
            processes: BTreeMap::new(),
            threads: HashMap::default(),
            stacks: StackCounts::default(),
            idle: 0,
            elsewhere: 0,
            frames: 0,
            limits,
        }
    }

    /// Adds `ticks` of a process with `mappings`, and the frames of their sample's stack. Returns the number of that stack;
    /// `None` without a sample, or if it is beyond the limits.
    pub fn add(&mut self, ticks: &Ticks, frames: &[u64], mappings: MappingSet) -> Option<u32> {
        self.add_alike(ticks, frames, mappings, 1)
    }

    /// The same for `count` equal samples.
    pub fn add_alike(
        &mut self,
        ticks: &Ticks,
        frames: &[u64],
        mappings: MappingSet,
        count: u64,
    ) -> Option<u32> {
        let mut modes = ModeCounts::default();
        modes[Mode::Idle.index()] = ticks.idle;
        if ticks.idle > 0 {
            self.idle = self.idle.saturating_add(ticks.idle);
            let (process, _) = self.processes.entry(IDLE_PID).or_default();
            add_modes(&mut process.modes, modes);
            if let Some(thread) = self.thread(IDLE_PID, IDLE_PID) {
                add_modes(&mut thread.modes, modes);
            }
        }
        let stack = ticks.sample.as_ref().and_then(|sample| {
            let mode = &mut modes[sample.mode.index()];
            *mode = mode.saturating_add(count);
            self.add_sample(sample, frames, mappings, count)
        });
        self.vcpus.entry(ticks.vcpu).or_default().add(&VcpuTicks {
            modes,
            stolen: ticks.stolen,
            lost: ticks.lost,
        });
        stack
    }

    fn add_sample(
        &mut self,
        sample: &Sample,
        frames: &[u64],
        mappings: MappingSet,
        number: u64,
    ) -> Option<u32> {
        // The limits don't apply to idle ticks.
        if self.processes.len() >= self.limits.processes - 1
            && !self.processes.contains_key(&sample.pid)
        {
            self.elsewhere = self.elsewhere.saturating_add(number);
            return None;
        }
        let (process, names) = self.processes.entry(sample.pid).or_default();
        names.note(sample);
        let count = &mut process.modes[sample.mode.index()];
        *count = count.saturating_add(number);
        if let Some(thread) = self.thread(sample.pid, sample.tid) {
            let count = &mut thread.modes[sample.mode.index()];
            *count = count.saturating_add(number);
            if sample.comm[0] != 0 {
                thread.comm = sample.comm;
            }
        }
        let stack = StackView::new(sample, frames, mappings);
        let stack = match self.stacks.find(sample.pid, stack) {
            Some(number) => number,
            None => self.add_stack(sample.pid, stack, number)?,
        };
        self.stacks.count(stack, number);
        Some(stack)
    }

    /// The sum of a thread; `None` if it is beyond the limits.
    fn thread(&mut self, pid: i32, tid: i32) -> Option<&mut Thread> {
        let room = self.threads.len() < self.limits.threads;
        match self.threads.entry((pid, tid)) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => room.then(|| new.insert(Thread::default())),
        }
    }

    /// Adds a new stack, of `samples`.
    fn add_stack(&mut self, pid: i32, mut stack: StackView<'_>, samples: u64) -> Option<u32> {
        if self.frames.saturating_add(stack.depth()) > self.limits.frames {
            stack = stack.innermost();
            if let Some(known) = self.stacks.find(pid, stack) {
                return Some(known);
            }
        }
        let number = if self.stacks.len() < self.limits.stacks {
            self.stacks.insert(pid, stack)
        } else {
            None
        };
        match number {
            Some(_) => self.frames = self.frames.saturating_add(stack.depth()),
            None => self.elsewhere = self.elsewhere.saturating_add(samples),
        }
        number
    }

    /// Adds the sums of a later time, without limits.
    pub fn merge(&mut self, later: &Self) {
        self.idle = self.idle.saturating_add(later.idle);
        self.elsewhere = self.elsewhere.saturating_add(later.elsewhere);
        self.frames = self.frames.saturating_add(later.frames);
        for (vcpu, ticks) in &later.vcpus {
            self.vcpus.entry(*vcpu).or_default().add(ticks);
        }
        for (pid, (process, names)) in &later.processes {
            let (sum, known) = self.processes.entry(*pid).or_default();
            add_modes(&mut sum.modes, process.modes);
            known.add(names);
        }
        for (id, thread) in &later.threads {
            let sum = self.threads.entry(*id).or_default();
            add_modes(&mut sum.modes, thread.modes);
            if thread.comm[0] != 0 {
                sum.comm = thread.comm;
            }
        }
        for ((pid, stack), count) in &later.stacks {
            let stack = stack.into();
            let known = self.stacks.find(*pid, stack);
            match known.or_else(|| self.stacks.insert(*pid, stack)) {
                Some(number) => self.stacks.count(number, *count),
                None => self.elsewhere = self.elsewhere.saturating_add(*count),
            }
        }
    }

    /// The profile with these sums: the part of a recording with `contents` that is in `selection`. `resolver` names
    /// the frames.
    pub fn into_profile(
        self,
        contents: Contents,
        resolver: Rc<Resolver>,
        selection: Selection,
    ) -> Profile {
        let processes = self.processes.into_iter().map(|(pid, (process, names))| {
            let name = names.text(resolver.process_name(pid));
            (pid, Process { name, ..process })
        });
        let processes = processes.collect();
        let vcpus = self
            .vcpus
            .into_iter()
            .map(|(vcpu, ticks)| (vcpu, ticks.modes));
        Profile {
            contents,
            resolver,
            selection,
            processes,
            threads: self.threads.into_iter().collect(),
            vcpus: vcpus.filter(|(_, modes)| sum_modes(modes) > 0).collect(),
            stacks: self.stacks,
            idle: self.idle,
            ..Profile::default()
        }
    }
}

/// A task's name for display.
pub fn task_name(comm: &[u8; COMM_LENGTH]) -> String {
    text::task_name(comm).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::Stack;
    use super::*;

    #[test]
    fn memory_stays_bounded_whatever_comes() {
        let limits = Limits {
            processes: 2048,
            threads: 1024,
            stacks: 4096,
            frames: 32_768,
        };
        let mut sums = Sums::new(limits);
        let mut samples = 0;
        for number in 0..20_000_u64 {
            let sample = Sample {
                pid: i32::try_from(number % 5000).unwrap(),
                pc: number,
                ..Sample::default()
            };
            let ticks = Ticks {
                idle: u64::MAX / 4,
                sample: Some(sample),
                ..Ticks::default()
            };
            let frames: Vec<u64> = (0..100).map(|frame| number << 8 | frame).collect();
            sums.add(&ticks, &frames, MappingSet::default());
            samples += 1;
        }
        assert!(sums.processes.len() <= limits.processes);
        assert!(sums.stacks.len() <= limits.stacks);
        let frames: usize = (sums.stacks.keys())
            .map(|(_, stack)| stack.frames.len())
            .sum();
        assert!(frames <= limits.frames + limits.stacks, "{frames}");
        let placed: u64 = sums.stacks.values().sum();
        assert_eq!(placed + sums.elsewhere, samples);
        assert!(sums.elsewhere > 0);
        assert_eq!(sums.vcpus[&0].modes, [0, samples, 0, u64::MAX]);
    }

    fn ticks() -> impl Strategy<Value = (Ticks, Vec<u64>)> {
        let sample = (-1..6_i32, 0..4_usize, prop::collection::vec(0..3_u64, 0..3));
        let gap = (0..2_u16, 0..3_u64, 0..3_u64, 0..3_u64);
        (gap, prop::option::of(sample)).prop_map(|((vcpu, idle, stolen, lost), sample)| {
            let (sample, frames) = sample
                .map(|(pid, mode, frames)| {
                    let sample = Sample {
                        vcpu,
                        pid,
                        tid: pid,
                        mode: Mode::ALL[mode],
                        comm: [b'a'; COMM_LENGTH],
                        ..Sample::default()
                    };
                    (sample, frames)
                })
                .unzip();
            let ticks = Ticks {
                vcpu,
                idle,
                stolen,
                lost,
                ungathered: 0,
                sample,
            };
            (ticks, frames.unwrap_or_default())
        })
    }

    proptest! {
        /// Each tick is in a vCPU's sum, each known one in a process's, each sample in a stack's, or elsewhere.
        /// Splitting the time changes nothing.
        #[test]
        fn every_tick_is_somewhere(
            all in prop::collection::vec(ticks(), 0..60),
            cut in 0..60_usize,
            processes in 2..9_usize,
            stacks in 1..20_usize,
        ) {
            let limits = Limits { processes, stacks, threads: processes, frames: 20 };
            let sum = |limits, part: &[(Ticks, Vec<u64>)]| {
                let mut sums = Sums::new(limits);
                for (ticks, frames) in part {
                    sums.add(ticks, frames, MappingSet::default());
                }
                sums
            };
            let total = |part: fn(&Ticks) -> u64| all.iter().map(|(ticks, _)| part(ticks)).sum::<u64>();
            let samples = total(|ticks| ticks.sample.is_some().into());
            let idle = total(|ticks| ticks.idle);
            let bounded = sum(limits, &all);
            let by_stack: u64 = bounded.stacks.values().sum();
            prop_assert_eq!(by_stack + bounded.elsewhere, samples);
            let by_process: u64 = bounded.processes.values().map(|(process, _)| process.samples()).sum();
            prop_assert!(by_process <= samples + idle && by_process + bounded.elsewhere >= samples + idle);
            let by_vcpu: u64 = bounded.vcpus.values().map(VcpuTicks::total).sum();
            prop_assert_eq!(by_vcpu, total(Ticks::total));

            let whole = sum(Limits::NONE, &all);
            let (first, second) = all.split_at(cut.min(all.len()));
            let mut merged = sum(Limits::NONE, first);
            merged.merge(&sum(Limits::NONE, second));
            prop_assert_eq!(&merged.vcpus, &whole.vcpus);
            prop_assert_eq!(&merged.processes, &whole.processes);
            let stacks = |sums: &Sums| -> HashMap<(i32, Stack), u64> {
                sums.stacks.into_iter().map(|(key, count)| (key.clone(), *count)).collect()
            };
            prop_assert_eq!(stacks(&merged), stacks(&whole));
            prop_assert_eq!((merged.idle, merged.elsewhere), (idle, 0));
        }
    }
}
