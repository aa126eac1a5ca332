//! What arrived in a part of the window, in bounded memory.

use std::collections::HashMap;
use std::time::Duration;

use kvmprof_devices::profiling::{Mode, Sample, Ticks};

use crate::profile::{Process, Stack, task_name};
use crate::symbolize::MappingSet;

/// The pid of what runs when nothing does.
pub const IDLE: i32 = 0;
/// Processes that a slot tells apart; the samples of others are in [`Slot::elsewhere`].
const MAX_PROCESSES: usize = 2048;
/// Stacks that a slot tells apart.
const MAX_STACKS: usize = 4096;
/// Frames in all of a slot's stacks; stacks beyond have their innermost frame alone.
const MAX_FRAMES: usize = 32_768;

/// What one vCPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuTicks {
    /// Ticks in user mode, in the kernel, in interrupts, idle.
    pub modes: [u64; 4],
    /// Ticks on which the host didn't run it.
    pub stolen: u64,
    /// Ticks missed for another reason.
    pub lost: u64,
}

impl VcpuTicks {
    /// Adds what another part of the window has of it.
    pub fn add(&mut self, other: &Self) {
        add_modes(&mut self.modes, other.modes);
        self.stolen = self.stolen.saturating_add(other.stolen);
        self.lost = self.lost.saturating_add(other.lost);
    }

    /// Ticks whose mode is known.
    pub fn known(&self) -> u64 {
        self.modes
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// All of its ticks.
    pub fn total(&self) -> u64 {
        self.known()
            .saturating_add(self.stolen)
            .saturating_add(self.lost)
    }
}

/// Adds counts by mode. Absurd ones stay at the most there can be rather than start anew.
pub fn add_modes(modes: &mut [u64; 4], others: [u64; 4]) {
    for (count, other) in modes.iter_mut().zip(others) {
        *count = count.saturating_add(other);
    }
}

/// A process, and whether its name is its main thread's.
pub type NamedProcess = (Process, bool);

/// The ticks of a span of time.
#[derive(Clone, Debug)]
pub struct Slot {
    /// When it began, in the time of [`Model`](super::Model).
    pub begin: Duration,
    /// When its last ticks arrived.
    pub end: Duration,
    /// By vCPU.
    pub vcpus: Vec<VcpuTicks>,
    /// By pid; -1 is those that couldn't be told.
    pub processes: HashMap<i32, NamedProcess>,
    /// How many samples there are of each process, in each stack.
    pub stacks: HashMap<(i32, Stack), u64>,
    /// Idle ticks without a sample.
    pub idle: u64,
    /// Samples for which there was no room above.
    pub elsewhere: u64,
    frames: usize,
}

impl Slot {
    /// An empty one.
    pub fn new(begin: Duration) -> Self {
        Self {
            begin,
            end: begin,
            vcpus: Vec::new(),
            processes: HashMap::new(),
            stacks: HashMap::new(),
            idle: 0,
            elsewhere: 0,
            frames: 0,
        }
    }

    /// Takes `ticks`, and the frames of their sample's stack, in a process that has `mappings`.
    pub fn add(&mut self, ticks: &Ticks, frames: &[u64], mappings: MappingSet) {
        let index = usize::from(ticks.vcpu);
        if self.vcpus.len() <= index {
            self.vcpus.resize(index + 1, VcpuTicks::default());
        }
        let mut new = VcpuTicks {
            modes: [0, 0, 0, ticks.idle],
            stolen: ticks.stolen,
            lost: ticks.lost,
        };
        if let Some(sample) = &ticks.sample {
            let number = number(sample.mode);
            new.modes[number] = new.modes[number].saturating_add(1);
        }
        if let Some(vcpu) = self.vcpus.get_mut(index) {
            vcpu.add(&new);
        }
        if ticks.idle > 0 {
            self.idle = self.idle.saturating_add(ticks.idle);
            let (process, _) = self.processes.entry(IDLE).or_default();
            add_modes(&mut process.modes, [0, 0, 0, ticks.idle]);
        }
        if let Some(sample) = &ticks.sample {
            self.add_sample(sample, frames, mappings);
        }
    }

    fn add_sample(&mut self, sample: &Sample, frames: &[u64], mappings: MappingSet) {
        // One place is left for the idle ticks.
        if self.processes.len() >= MAX_PROCESSES - 1 && !self.processes.contains_key(&sample.pid) {
            self.elsewhere = self.elsewhere.saturating_add(1);
            return;
        }
        let (process, by_main_thread) = self.processes.entry(sample.pid).or_default();
        let is_main_thread = sample.tid == sample.pid;
        if sample.comm[0] != 0 && (is_main_thread || !*by_main_thread) {
            process.name = task_name(&sample.comm);
            *by_main_thread = is_main_thread;
        }
        let mode = number(sample.mode);
        process.modes[mode] = process.modes[mode].saturating_add(1);
        self.add_stack(sample, frames, mappings);
    }

    fn add_stack(&mut self, sample: &Sample, frames: &[u64], mappings: MappingSet) {
        let mut key = (sample.pid, Stack::of(sample, frames, mappings));
        let frames = key.1.frames.len();
        if let Some(count) = self.stacks.get_mut(&key) {
            *count += 1;
            return;
        }
        if self.frames + frames > MAX_FRAMES {
            key.1.frames.truncate(1);
            key.1.summary = sample.stack.dropped();
        }
        if self.stacks.len() >= MAX_STACKS && !self.stacks.contains_key(&key) {
            self.elsewhere = self.elsewhere.saturating_add(1);
            return;
        }
        self.frames += key.1.frames.len();
        *self.stacks.entry(key).or_default() += 1;
    }
}

fn number(mode: Mode) -> usize {
    match mode {
        Mode::User => 0,
        Mode::Kernel => 1,
        Mode::Interrupt => 2,
        Mode::Idle => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_bounded_whatever_comes() {
        let mut slot = Slot::new(Duration::ZERO);
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
            slot.add(&ticks, &frames, MappingSet::default());
            samples += 1;
        }
        assert!(slot.processes.len() <= MAX_PROCESSES);
        assert!(slot.stacks.len() <= MAX_STACKS);
        let frames: usize = slot
            .stacks
            .keys()
            .map(|(_, stack)| stack.frames.len())
            .sum();
        assert!(frames <= MAX_FRAMES + MAX_STACKS, "{frames}");
        let placed: u64 = slot.stacks.values().sum();
        assert_eq!(placed + slot.elsewhere, samples);
        assert!(slot.elsewhere > 0);
        assert_eq!(slot.vcpus[0].modes, [0, samples, 0, u64::MAX]);
    }
}
