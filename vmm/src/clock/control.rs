//! How the profiler sets a vCPU's clock, and how the vCPU's thread acknowledges it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use kvmprof_recording::StackParts;

/// Counts the requests to one vCPU's clock.
pub type Generation = u32;

/// What a vCPU's clock should do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSetting {
    /// Ticks a second; 0 stops the clock.
    pub hz: u32,
    /// Read the process group at each tick: PROF_GROUP asks for it.
    pub process_group: bool,
    /// Take these parts of the call stack at each tick: recorders ask for them.
    pub stacks: StackParts,
    /// Follow the mappings of processes at each tick: recorders ask for it.
    pub processes: bool,
}

/// Shared by the profiler, which asks, and one vCPU's thread, which answers.
///
/// A request is a new generation of the setting. The vCPU's thread answers by acknowledging it,
/// after it has handed over all ticks that were due until then: so a request for the same setting
/// brings the account up to date.
#[derive(Debug, Default)]
pub struct ClockControl {
    // Generation in the upper half; what is read besides in bits 28 to 31, and hz in the bits below.
    request: AtomicU64,
    acknowledged: AtomicU32,
    halted: AtomicBool,
}

const PROCESS_GROUP: u32 = 1 << 31;
const KERNEL_STACK: u32 = 1 << 30;
const USER_STACK: u32 = 1 << 29;
const PROCESSES: u32 = 1 << 28;
const RATE: u32 = PROCESSES - 1;

impl ClockControl {
    /// Asks for `setting`; the vCPU's thread must be kicked after that. Only the profiler calls it.
    pub fn request(&self, setting: ClockSetting) -> Generation {
        let generation = self.generation().wrapping_add(1);
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let low = setting.hz & RATE
            | flag(setting.process_group, PROCESS_GROUP)
            | flag(setting.stacks.kernel, KERNEL_STACK)
            | flag(setting.stacks.user, USER_STACK)
            | flag(setting.processes, PROCESSES);
        self.request.store(
            u64::from(generation) << 32 | u64::from(low),
            Ordering::Release,
        );
        generation
    }

    /// The newest request.
    pub fn requested(&self) -> (Generation, ClockSetting) {
        let request = self.request.load(Ordering::Acquire);
        let [generation, low] = halves(request);
        let setting = ClockSetting {
            hz: low & RATE,
            process_group: low & PROCESS_GROUP != 0,
            stacks: StackParts {
                kernel: low & KERNEL_STACK != 0,
                user: low & USER_STACK != 0,
            },
            processes: low & PROCESSES != 0,
        };
        (generation, setting)
    }

    /// The newest request's number.
    pub fn generation(&self) -> Generation {
        halves(self.request.load(Ordering::Relaxed))[0]
    }

    /// Acknowledges all requests up to `generation`. Only the vCPU's thread calls it.
    pub fn acknowledge(&self, generation: Generation) {
        self.acknowledged.store(generation, Ordering::Release);
    }

    /// True when the request `generation`, or a later one, has been acknowledged.
    pub fn has_acknowledged(&self, generation: Generation) -> bool {
        let since = self
            .acknowledged
            .load(Ordering::Acquire)
            .wrapping_sub(generation);
        // Generations wrap around: what is ahead by more than half of them lies behind.
        since <= Generation::MAX / 2
    }

    /// Marks the vCPU as halted with no wake-up for its ticks, or as running.
    pub fn set_halted(&self, halted: bool) {
        self.halted.store(halted, Ordering::Release);
    }

    /// True while the vCPU is halted and its ticks are accounted later.
    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }
}

fn halves(word: u64) -> [u32; 2] {
    let bytes = word.to_be_bytes();
    [
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_settled_when_its_generation_is_acknowledged() {
        let control = ClockControl::default();
        assert!(control.has_acknowledged(control.generation()));
        let setting = ClockSetting {
            hz: 10_000,
            process_group: true,
            stacks: StackParts {
                kernel: false,
                user: true,
            },
            processes: true,
        };
        let first = control.request(setting);
        assert!(!control.has_acknowledged(control.generation()));
        assert_eq!(control.requested(), (first, setting));
        control.acknowledge(first);
        assert!(control.has_acknowledged(control.generation()));
        let second = control.request(ClockSetting::default());
        assert_ne!(first, second);
        assert!(!control.has_acknowledged(control.generation()));
    }
}
