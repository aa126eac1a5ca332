//! Sums samples up: by process, by vCPU and by stack.

use std::collections::BTreeMap;
use std::rc::Rc;

use kvmprof_abi::text;
use kvmprof_recording::file::{Contents, Observer};
use kvmprof_recording::{COMM_LENGTH, IDLE_PID, Mode, Sample, Ticks};

use super::modes::{ModeCounts, add_modes, sum_modes};
use super::namer::Namer;
use super::names::ProcessNames;
use super::transform::Transformer;
use super::{Process, Profile, Selection, Stack, StackCounts, StackSum, Table, Thread};
use crate::symbolize::{LabelSet, ProcessState, Resolver};

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

/// The samples of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ProcessSum {
    modes: ModeCounts,
    names: ProcessNames,
}

/// Samples, summed up. Processes, threads and stacks have numbers in the order of their first samples.
#[derive(Clone, Debug)]
pub struct Sums {
    /// The sums by vCPU.
    pub vcpus: BTreeMap<u16, VcpuTicks>,
    /// The number of samples of each process in each stack.
    pub stacks: StackCounts,
    /// Idle ticks without a sample.
    pub idle: u64,
    /// The number of samples beyond the limits.
    pub elsewhere: u64,
    /// The pids; -1 for unknown processes.
    pids: Table<i32>,
    processes: Vec<ProcessSum>,
    /// The pids, tids and labels of threads.
    tids: Table<(i32, i32, LabelSet)>,
    threads: Vec<Thread>,
    frames: usize,
    limits: Limits,
}

/// The numbers of a sample's process and thread; `None` beyond the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runner {
    /// The process.
    pub process: Option<u32>,
    /// The thread.
    pub thread: Option<u32>,
}

impl Sums {
    /// Empty sums with these `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            vcpus: BTreeMap::new(),
            stacks: StackCounts::default(),
            idle: 0,
            elsewhere: 0,
            pids: Table::default(),
            processes: Vec::new(),
            tids: Table::default(),
            threads: Vec::new(),
            frames: 0,
            limits,
        }
    }

    /// Adds `ticks` of a process with this `state`, and the frames of their sample's stack.
    pub fn add(&mut self, ticks: &Ticks, frames: &[u64], state: ProcessState) {
        self.add_ticks(ticks);
        if let Some(sample) = &ticks.sample {
            let runner = self.runner(sample.pid, sample.tid, state.labels);
            let view = Stack::new(sample, frames, state);
            let stack = runner.process.and_then(|_| self.stack(sample.pid, view));
            self.count(sample, runner, stack);
        }
    }

    /// Adds `ticks` to those of their vCPU.
    pub fn add_ticks(&mut self, ticks: &Ticks) {
        self.idle = self.idle.saturating_add(ticks.idle);
        let vcpu = self.vcpus.entry(ticks.vcpu).or_default();
        let idle = &mut vcpu.modes[Mode::Idle.index()];
        *idle = idle.saturating_add(ticks.idle);
        if let Some(sample) = &ticks.sample {
            let mode = &mut vcpu.modes[sample.mode.index()];
            *mode = mode.saturating_add(1);
        }
        vcpu.stolen = vcpu.stolen.saturating_add(ticks.stolen);
        vcpu.lost = vcpu.lost.saturating_add(ticks.lost);
    }

    /// The numbers of a process and its thread with these `labels`. A process beyond the limits has no threads.
    pub fn runner(&mut self, pid: i32, tid: i32, labels: LabelSet) -> Runner {
        let process = self.process(pid);
        let thread = process.and_then(|_| self.thread(pid, tid, labels));
        Runner { process, thread }
    }

    fn process(&mut self, pid: i32) -> Option<u32> {
        // The idle process always has a sum.
        let has_room = self.processes.len() < self.limits.processes - 1;
        self.pids.find(&pid).or_else(|| {
            has_room.then(|| {
                self.processes.push(ProcessSum::default());
                self.pids.push(pid)
            })
        })
    }

    fn thread(&mut self, pid: i32, tid: i32, labels: LabelSet) -> Option<u32> {
        let has_room = self.threads.len() < self.limits.threads;
        self.tids.find(&(pid, tid, labels)).or_else(|| {
            has_room.then(|| {
                self.threads.push(Thread {
                    pid,
                    tid,
                    labels,
                    ..Thread::default()
                });
                self.tids.push((pid, tid, labels))
            })
        })
    }

    /// The number of `stack` of process `pid`; `None` if it is beyond the limits.
    pub fn stack(&mut self, pid: i32, stack: Stack<'_>) -> Option<u32> {
        let known = self.stacks.find(pid, stack);
        known.or_else(|| self.add_stack(pid, stack))
    }

    fn add_stack(&mut self, pid: i32, mut stack: Stack<'_>) -> Option<u32> {
        if self.frames.saturating_add(stack.frames.len()) > self.limits.frames {
            stack = stack.innermost();
            if let Some(known) = self.stacks.find(pid, stack) {
                return Some(known);
            }
        }
        let has_room = self.stacks.len() < self.limits.stacks;
        let number = has_room.then(|| self.stacks.insert(pid, stack))??;
        self.frames = self.frames.saturating_add(stack.frames.len());
        Some(number)
    }

    /// Counts `sample`.
    pub fn count(&mut self, sample: &Sample, runner: Runner, stack: Option<u32>) {
        let mode = sample.mode.index();
        if let Some(process) = runner
            .process
            .map(|place| &mut self.processes[place as usize])
        {
            process.names.note(sample);
            process.modes[mode] = process.modes[mode].saturating_add(1);
        }
        if let Some(thread) = runner.thread.map(|place| &mut self.threads[place as usize]) {
            thread.modes[mode] = thread.modes[mode].saturating_add(1);
            if sample.comm[0] != 0 {
                thread.comm = sample.comm;
            }
            thread.inner_tid = sample.inner_tid.or(thread.inner_tid);
        }
        match stack {
            Some(stack) => self.stacks.count(stack, 1),
            None => self.elsewhere = self.elsewhere.saturating_add(1),
        }
    }

    /// Adds the sums of a later time, but those of threads.
    pub fn merge(&mut self, later: &Self) {
        self.idle = self.idle.saturating_add(later.idle);
        self.elsewhere = self.elsewhere.saturating_add(later.elsewhere);
        self.frames = self.frames.saturating_add(later.frames);
        for (vcpu, ticks) in &later.vcpus {
            self.vcpus.entry(*vcpu).or_default().add(ticks);
        }
        for (pid, process) in later.pids.values().iter().zip(&later.processes) {
            let known = self.process(*pid);
            if let Some(sum) = known.map(|place| &mut self.processes[place as usize]) {
                add_modes(&mut sum.modes, process.modes);
                sum.names.add(&process.names);
            }
        }
        for (pid, stack, count) in later.stacks.iter() {
            let known = self.stacks.find(pid, stack);
            match known.or_else(|| self.stacks.insert(pid, stack)) {
                Some(number) => self.stacks.count(number, count),
                None => self.elsewhere = self.elsewhere.saturating_add(count),
            }
        }
    }

    /// The profile with these sums: the part of a recording with `contents` that is in `selection`. `resolver` names
    /// the frames, and `observer` gets the progress of that.
    pub fn into_profile(
        self,
        contents: Contents,
        resolver: Rc<Resolver>,
        selection: Selection,
        observer: &dyn Observer,
    ) -> Profile {
        let mut namer = Namer::new(&resolver, contents.kernel.as_ref());
        namer.prepare(&self.stacks, observer);
        let mut transformer = Transformer::new(&selection.transforms);
        let stacks = self.stacks.iter();
        let stacks = stacks.map(|(pid, stack, ticks)| {
            let recorded = (namer.node(stack), stack.is_cut_short());
            let shown = transformer.apply(namer.code_mut(), recorded);
            let (node, is_cut_short) = shown.unwrap_or(recorded);
            StackSum {
                pid,
                node,
                mode: stack.mode,
                labels: stack.labels,
                is_cut_short,
                ticks,
            }
        });
        let stacks = stacks.collect();
        let code = namer.into_code();
        let mut processes: BTreeMap<i32, Process> = BTreeMap::new();
        for (pid, sum) in self.pids.values().iter().zip(self.processes) {
            let name = sum.names.text(resolver.process_name(*pid));
            let modes = sum.modes;
            processes.insert(*pid, Process { name, modes });
        }
        let mut threads = self.threads;
        if self.idle > 0 {
            let idle = processes.entry(IDLE_PID).or_insert_with(|| Process {
                name: ProcessNames::default().text(resolver.process_name(IDLE_PID)),
                modes: ModeCounts::default(),
            });
            add_idle(&mut idle.modes, self.idle);
            let known = (self.tids).find(&(IDLE_PID, IDLE_PID, LabelSet::default()));
            if known.is_none() {
                threads.push(Thread::default());
            }
            let thread = match known {
                Some(place) => threads.get_mut(place as usize),
                None => threads.last_mut(),
            };
            thread
                .into_iter()
                .for_each(|thread| add_idle(&mut thread.modes, self.idle));
        }
        let vcpus = self.vcpus.into_iter();
        let vcpus = vcpus.map(|(vcpu, ticks)| (vcpu, ticks.modes));
        Profile {
            contents,
            selection,
            processes,
            threads,
            vcpus: vcpus.filter(|(_, modes)| sum_modes(modes) > 0).collect(),
            stacks,
            code: Rc::new(code),
            idle: self.idle,
            has_symbols: !resolver.tables().kernel.is_empty(),
            resolver,
            ..Profile::default()
        }
    }
}

fn add_idle(modes: &mut ModeCounts, ticks: u64) {
    let idle = &mut modes[Mode::Idle.index()];
    *idle = idle.saturating_add(ticks);
}

/// A task's name for display.
pub fn task_name(comm: &[u8; COMM_LENGTH]) -> String {
    text::task_name(comm).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_is_bounded_for_any_input() {
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
                ..sample.into()
            };
            let frames: Vec<u64> = (0..100).map(|frame| number << 8 | frame).collect();
            sums.add(&ticks, &frames, ProcessState::default());
            samples += 1;
        }
        assert!(sums.processes.len() < limits.processes);
        assert!(sums.stacks.len() <= limits.stacks);
        let frames: usize = (sums.stacks.iter())
            .map(|(_, stack, _)| stack.frames.len())
            .sum();
        assert!(frames <= limits.frames + limits.stacks, "{frames}");
        let placed: u64 = sums.stacks.iter().map(|(.., count)| count).sum();
        assert_eq!(placed + sums.elsewhere, samples);
        assert!(sums.elsewhere > 0);
        assert_eq!(sums.vcpus[&0].modes, [0, samples, 0, u64::MAX]);
    }

    fn ticks() -> impl Strategy<Value = (Ticks, Vec<u64>)> {
        let sample = (-1..6_i32, 0..4_usize, prop::collection::vec(0..3_u64, 0..3));
        let gap = (0..2_u16, 0..3_u64, 0..3_u64, 0..3_u64);
        (gap, prop::option::of(sample)).prop_map(|((vcpu, idle, stolen, lost), sample)| {
            let sample = sample.map(|(pid, mode, frames)| {
                let sample = Sample {
                    vcpu,
                    pid,
                    tid: pid,
                    mode: Mode::ALL[mode],
                    comm: [b'a'; COMM_LENGTH],
                    ..Sample::default()
                };
                (sample, frames)
            });
            let (sample, frames) = sample.unzip();
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
        fn every_tick_is_in_one_sum(
            all in prop::collection::vec(ticks(), 0..60),
            cut in 0..60_usize,
            processes in 2..9_usize,
            stacks in 1..20_usize,
        ) {
            let limits = Limits { processes, stacks, threads: processes, frames: 20 };
            let sum = |limits, part: &[(Ticks, Vec<u64>)]| {
                let mut sums = Sums::new(limits);
                for (ticks, frames) in part {
                    sums.add(ticks, frames, ProcessState::default());
                }
                sums
            };
            let total = |part: fn(&Ticks) -> u64| all.iter().map(|(ticks, _)| part(ticks)).sum::<u64>();
            let samples = total(|ticks| ticks.sample.is_some().into());
            let idle = total(|ticks| ticks.idle);
            let bounded = sum(limits, &all);
            let by_stack: u64 = bounded.stacks.iter().map(|(.., count)| count).sum();
            prop_assert_eq!(by_stack + bounded.elsewhere, samples);
            let by_process: u64 = bounded.processes.iter().map(|process| sum_modes(&process.modes)).sum();
            prop_assert!(by_process <= samples && by_process + bounded.elsewhere >= samples);
            let by_vcpu: u64 = bounded.vcpus.values().map(VcpuTicks::total).sum();
            prop_assert_eq!(by_vcpu, total(Ticks::total));

            let whole = sum(Limits::NONE, &all);
            let (first, second) = all.split_at(cut.min(all.len()));
            let mut merged = sum(Limits::NONE, first);
            merged.merge(&sum(Limits::NONE, second));
            prop_assert_eq!(&merged.vcpus, &whole.vcpus);
            let processes = |sums: &Sums| -> HashMap<i32, ProcessSum> {
                sums.pids.values().iter().copied().zip(sums.processes.iter().cloned()).collect()
            };
            prop_assert_eq!(processes(&merged), processes(&whole));
            fn counts_of(sums: &Sums) -> HashMap<(i32, Stack<'_>), u64> {
                sums.stacks.iter().map(|(pid, stack, count)| ((pid, stack), count)).collect()
            }
            prop_assert_eq!(counts_of(&merged), counts_of(&whole));
            prop_assert_eq!((merged.idle, merged.elsewhere), (idle, 0));
        }
    }
}
