//! The quantity that a recording's ticks measure: time, or events of the guest.

use kvmprof_recording::EventKind;
use kvmprof_recording::file::RecordingInfo;

/// The amount of a quantity that one tick stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The amount, at least 1.
    pub per_tick: u64,
    /// The quantity.
    pub quantity: Quantity,
}

/// A quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Time on a vCPU, in ns.
    Time,
    /// Processor time of a vCPU's thread, in ns.
    GuestTime,
    /// Events; their name.
    Events(&'static str),
}

impl Quantity {
    /// The event that makes the ticks; `None` if the clock makes them.
    pub fn event(self) -> Option<&'static str> {
        match self {
            Self::Time => None,
            Self::GuestTime => Some(EventKind::GuestTime.name()),
            Self::Events(name) => Some(name),
        }
    }

    /// Whether the unit of the quantity is ns.
    pub fn is_time(self) -> bool {
        matches!(self, Self::Time | Self::GuestTime)
    }
}

impl Weight {
    /// The weight of a tick in a recording with these properties.
    pub fn of_tick(info: &RecordingInfo) -> Self {
        match info.event {
            None => Self {
                per_tick: (1_000_000_000 / u64::from(info.hz.max(1))).max(1),
                quantity: Quantity::Time,
            },
            Some(event) => Self {
                per_tick: event.period(),
                quantity: match event.kind() {
                    EventKind::GuestTime => Quantity::GuestTime,
                    kind => Quantity::Events(kind.name()),
                },
            },
        }
    }

    /// The weight of this number of ticks.
    pub fn of(self, ticks: u64) -> u64 {
        self.per_tick.saturating_mul(ticks)
    }

    /// The time between two ticks of a vCPU, in ns, at least 1. For events it is 1: only the order of their ticks is
    /// known.
    pub fn interval_ns(self) -> u64 {
        match self.quantity {
            Quantity::Time => self.per_tick,
            Quantity::GuestTime | Quantity::Events(_) => 1,
        }
    }

    /// The time that a tick stands for, in ns; 0 for an event. Guest time is an event, because it passes only while the guest runs.
    pub fn time_ns(self) -> u64 {
        match self.quantity {
            Quantity::Time => self.per_tick,
            Quantity::GuestTime | Quantity::Events(_) => 0,
        }
    }

    /// perf's name for the event that takes the samples.
    pub fn perf_name(self) -> &'static str {
        self.quantity.event().unwrap_or("cpu-clock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_event(event: &str) -> Weight {
        let info = RecordingInfo {
            event: Some(event.parse().unwrap()),
            ..RecordingInfo::default()
        };
        Weight::of_tick(&info)
    }

    fn by_clock(hz: u32) -> Weight {
        let info = RecordingInfo {
            hz,
            ..RecordingInfo::default()
        };
        Weight::of_tick(&info)
    }

    #[test]
    fn a_tick_is_time_or_events() {
        // Guest time is in ns, and not the time between ticks.
        for (weight, quantity, of_3, interval, time) in [
            (
                by_clock(250),
                Quantity::Time,
                12_000_000,
                4_000_000,
                4_000_000,
            ),
            (
                by_event("mmio-read:30"),
                Quantity::Events("mmio-read"),
                90,
                1,
                0,
            ),
            (
                by_event("guest-time:2ms"),
                Quantity::GuestTime,
                6_000_000,
                1,
                0,
            ),
        ] {
            assert_eq!((weight.quantity, weight.of(3)), (quantity, of_3));
            assert_eq!((weight.interval_ns(), weight.time_ns()), (interval, time));
        }
        let guest_time = by_event("guest-time:2ms");
        assert!(guest_time.quantity.is_time());
        assert_eq!(guest_time.perf_name(), "guest-time");
    }

    #[test]
    fn absurd_rates_cause_no_panic() {
        for hz in [0, 1, u32::MAX] {
            let weight = by_clock(hz);
            assert!(weight.per_tick >= 1 && weight.of(u64::MAX) >= 1);
        }
    }
}
