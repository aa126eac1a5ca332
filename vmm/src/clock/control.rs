//! How the profiler sets a vCPU's clock, and how the vCPU's thread acknowledges it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use kvmprof_abi::recorder::MAX_PERIOD;
use kvmprof_recording::{EventKind, SamplingEvent, StackParts};

use super::MAXIMUM_HZ;

/// Counts the requests to one vCPU's clock.
pub type Generation = u32;

/// What makes the ticks of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickSource {
    /// The clock, so often a second; never 0.
    Clock(u32),
    /// An event of the guest; the clock stands still.
    Event(SamplingEvent),
}

impl TickSource {
    /// The clock at `hz` ticks a second; `None` if that is 0.
    pub fn clock(hz: u32) -> Option<Self> {
        (hz != 0).then_some(Self::Clock(hz))
    }

    /// The clock's ticks a second; 0 while it stands still.
    pub fn hz(self) -> u32 {
        match self {
            Self::Clock(hz) => hz,
            Self::Event(_) => 0,
        }
    }

    /// The event that makes the ticks.
    pub fn event(self) -> Option<SamplingEvent> {
        match self {
            Self::Clock(_) => None,
            Self::Event(event) => Some(event),
        }
    }
}

/// How a vCPU is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSetting {
    /// What makes ticks; `None`: there are none.
    pub source: Option<TickSource>,
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
    // Generation in the upper half; what is read besides in bits 28 to 31; the event's number, 0 for the clock, in
    // bits 25 to 27, and its period or the clock's hz in the bits below.
    request: AtomicU64,
    acknowledged: AtomicU32,
    halted: AtomicBool,
}

const PROCESS_GROUP: u32 = 1 << 31;
const KERNEL_STACK: u32 = 1 << 30;
const USER_STACK: u32 = 1 << 29;
const PROCESSES: u32 = 1 << 28;
const EVENT_SHIFT: u32 = 25;
const EVENT: u32 = (PROCESSES - 1) >> EVENT_SHIFT;
const RATE: u32 = (1 << EVENT_SHIFT) - 1;

const _: () = assert!(MAX_PERIOD <= RATE && MAXIMUM_HZ <= RATE);
const _: () = assert!(EventKind::ALL.len() <= EVENT as usize);

impl ClockControl {
    /// Asks for `setting`; the vCPU's thread must be kicked after that. Only the profiler calls it.
    pub fn request(&self, setting: ClockSetting) -> Generation {
        let generation = self.generation().wrapping_add(1);
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let low = encode(setting.source)
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
            source: decode(low),
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

fn encode(source: Option<TickSource>) -> u32 {
    match source {
        None => 0,
        Some(TickSource::Clock(hz)) => hz & RATE,
        Some(TickSource::Event(event)) => {
            ((event.kind().number() & EVENT) << EVENT_SHIFT) | (event.period() & RATE)
        }
    }
}

fn decode(low: u32) -> Option<TickSource> {
    let rate = low & RATE;
    match EventKind::from_number((low >> EVENT_SHIFT) & EVENT) {
        None => TickSource::clock(rate),
        Some(kind) => SamplingEvent::new(kind, rate).map(TickSource::Event),
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
            source: TickSource::clock(10_000),
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

    #[test]
    fn every_source_of_ticks_arrives_as_it_was_asked_for() {
        let control = ClockControl::default();
        let events = EventKind::ALL
            .into_iter()
            .flat_map(|kind| [1, 1000, MAX_PERIOD].map(|period| SamplingEvent::new(kind, period)));
        let events = events.map(|event| event.map(TickSource::Event));
        let clocks = [0, 1, MAXIMUM_HZ].map(TickSource::clock);
        for source in events.chain(clocks) {
            for process_group in [false, true] {
                let setting = ClockSetting {
                    source,
                    process_group,
                    ..ClockSetting::default()
                };
                let generation = control.request(setting);
                assert_eq!(control.requested(), (generation, setting));
            }
        }
    }
}
