//! How the profiler sets a vCPU's clock, and how the vCPU's thread acknowledges it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use kvmprof_abi::recorder::MAX_PERIOD;
use kvmprof_recording::{EventKind, SamplingEvent, StackParts};

/// Counts the requests to one vCPU's clock. It wraps around after 2^19.
pub type Generation = u32;

/// What makes the ticks of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickSource {
    /// The clock, at this rate in Hz; never 0.
    Clock(u32),
    /// An event of the guest. The clock is stopped.
    Event(SamplingEvent),
}

impl TickSource {
    /// The clock at `hz` ticks a second; `None` if that is 0.
    pub fn clock(hz: u32) -> Option<Self> {
        (hz != 0).then_some(Self::Clock(hz))
    }

    /// The clock's ticks a second; 0 while it is stopped.
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
    /// What makes ticks; `None` if there are no ticks.
    pub source: Option<TickSource>,
    /// Read the process group at each tick, for PROF_GROUP.
    pub process_group: bool,
    /// Take these parts of the call stack at each tick, for recorders.
    pub stacks: StackParts,
    /// Follow the mappings of processes at each tick, for recorders.
    pub processes: bool,
    /// Stop the vCPU at each tick, for profil's stores and pmc's counts.
    pub exits: bool,
    /// Stop the vCPU, without ticks, until another setting.
    pub paused: bool,
}

impl ClockSetting {
    /// The setting that applies: without ticks while the vCPU is paused.
    pub fn effective(self) -> Self {
        Self {
            source: self.source.filter(|_| !self.paused),
            ..self
        }
    }
}

/// Shared by the profiler, which makes requests, and one vCPU's thread, which answers them.
///
/// A request is a new generation of the setting. The vCPU's thread answers by acknowledging it,
/// after it has delivered all ticks that were due until then: so a request for the same setting
/// brings the account up to date.
#[derive(Debug, Default)]
pub struct ClockControl {
    // From the top: the generation, 19 bits; whether it is paused; what is read besides, 5; the event's number, 0 for the clock, 5; and its
    // period or the clock's hz, 34.
    request: AtomicU64,
    acknowledged: AtomicU32,
    halted: AtomicBool,
    in_kernel: AtomicBool,
}

const RATE_BITS: u32 = 34;
const RATE: u64 = (1 << RATE_BITS) - 1;
const EVENT_BITS: u32 = 5;
const EVENT: u64 = (1 << EVENT_BITS) - 1;
const PROCESSES: u64 = 1 << 39;
const USER_STACK: u64 = 1 << 40;
const KERNEL_STACK: u64 = 1 << 41;
const PROCESS_GROUP: u64 = 1 << 42;
const EXITS: u64 = 1 << 43;
const PAUSED: u64 = 1 << 44;
const GENERATION_SHIFT: u32 = 45;
/// Generations differ up to this.
const GENERATIONS: Generation = (1 << (64 - GENERATION_SHIFT)) - 1;

const _: () = assert!(MAX_PERIOD <= RATE && EVENT << RATE_BITS < PROCESSES);
const _: () = assert!(EventKind::ALL.len() < 1 << EVENT_BITS);

impl ClockControl {
    /// Requests `setting`. The caller must kick the vCPU's thread after that. Only the profiler calls this.
    pub fn request(&self, setting: ClockSetting) -> Generation {
        let generation = self.generation().wrapping_add(1) & GENERATIONS;
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let low = encode(setting.source)
            | flag(setting.process_group, PROCESS_GROUP)
            | flag(setting.stacks.kernel, KERNEL_STACK)
            | flag(setting.stacks.user, USER_STACK)
            | flag(setting.processes, PROCESSES)
            | flag(setting.exits, EXITS)
            | flag(setting.paused, PAUSED);
        self.request.store(
            u64::from(generation) << GENERATION_SHIFT | low,
            Ordering::Release,
        );
        generation
    }

    /// The newest request.
    pub fn requested(&self) -> (Generation, ClockSetting) {
        let low = self.request.load(Ordering::Acquire);
        let setting = ClockSetting {
            source: decode(low),
            process_group: low & PROCESS_GROUP != 0,
            stacks: StackParts {
                kernel: low & KERNEL_STACK != 0,
                user: low & USER_STACK != 0,
            },
            processes: low & PROCESSES != 0,
            exits: low & EXITS != 0,
            paused: low & PAUSED != 0,
        };
        (generation_of(low), setting)
    }

    /// The newest request's number.
    pub fn generation(&self) -> Generation {
        generation_of(self.request.load(Ordering::Relaxed))
    }

    /// Acknowledges all requests up to `generation`. Only the vCPU's thread calls this.
    pub fn acknowledge(&self, generation: Generation) {
        self.acknowledged.store(generation, Ordering::Release);
    }

    /// True when the request `generation`, or a later one, has been acknowledged.
    pub fn has_acknowledged(&self, generation: Generation) -> bool {
        let since = self
            .acknowledged
            .load(Ordering::Acquire)
            .wrapping_sub(generation);
        // Generations wrap around: a generation that is ahead by more than half of the range is an older one.
        since & GENERATIONS <= GENERATIONS / 2
    }

    /// Notes that the vCPU's thread ends, so that no other thread waits for it.
    pub fn finish(&self) {
        self.set_halted(false);
        self.acknowledge(self.requested().0);
    }

    /// Marks the vCPU as one whose ticks are accounted later, because it is halted with no wake-up for them or the host's
    /// kernel samples it; or as one that accounts for each tick when that is due.
    pub fn set_halted(&self, halted: bool) {
        self.halted.store(halted, Ordering::Release);
    }

    /// True while the vCPU's ticks are accounted later.
    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    /// Notes whether the host's kernel takes the vCPU's samples.
    pub fn set_in_kernel(&self, in_kernel: bool) {
        self.in_kernel.store(in_kernel, Ordering::Relaxed);
    }

    /// Whether the host's kernel takes the vCPU's samples.
    pub fn is_in_kernel(&self) -> bool {
        self.in_kernel.load(Ordering::Relaxed)
    }
}

fn encode(source: Option<TickSource>) -> u64 {
    match source {
        None => 0,
        Some(TickSource::Clock(hz)) => u64::from(hz),
        Some(TickSource::Event(event)) => {
            u64::from(event.kind().number()) << RATE_BITS | event.period()
        }
    }
}

fn decode(request: u64) -> Option<TickSource> {
    let rate = request & RATE;
    let number = u32::try_from(request >> RATE_BITS & EVENT).ok()?;
    match EventKind::from_number(number) {
        None => TickSource::clock(u32::try_from(rate).ok()?),
        Some(kind) => SamplingEvent::new(kind, rate).map(TickSource::Event),
    }
}

fn generation_of(request: u64) -> Generation {
    // 19 bits are left.
    Generation::try_from(request >> GENERATION_SHIFT).unwrap_or_default()
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
            exits: true,
            paused: true,
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
    fn generations_restart() {
        let control = ClockControl::default();
        let setting = ClockSetting::default();
        let mut last = control.request(setting);
        for _ in 0..=GENERATIONS {
            control.acknowledge(last);
            let next = control.request(setting);
            assert!(control.has_acknowledged(last) && !control.has_acknowledged(next));
            last = next;
        }
        assert_eq!(last, 1);
    }

    #[test]
    fn every_source_of_ticks_round_trips() {
        let control = ClockControl::default();
        let events = EventKind::ALL.into_iter().flat_map(|kind| {
            [kind.least_period(), 1_000_000, MAX_PERIOD]
                .map(|period| SamplingEvent::new(kind, period))
        });
        let events = events.map(|event| event.map(TickSource::Event));
        let clocks = [0, 1, u32::MAX].map(TickSource::clock);
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
