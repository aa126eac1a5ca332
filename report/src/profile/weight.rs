//! What a recording's ticks measure: time, or events of the guest.

use kvmprof_recording::file::RecordingInfo;

/// What one tick stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// How much of the quantity, at least 1.
    pub per_tick: u64,
    /// The quantity.
    pub quantity: Quantity,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Time on a vCPU, in ns.
    Time,
    /// Events; their name.
    Events(&'static str),
}

impl Weight {
    /// That of a tick in a recording with these properties.
    pub fn of_tick(info: &RecordingInfo) -> Self {
        match info.event {
            None => Self {
                per_tick: (1_000_000_000 / u64::from(info.hz.max(1))).max(1),
                quantity: Quantity::Time,
            },
            Some(event) => Self {
                per_tick: event.period().into(),
                quantity: Quantity::Events(event.kind().name()),
            },
        }
    }

    /// That of so many ticks.
    pub fn of(self, ticks: u64) -> u64 {
        self.per_tick.saturating_mul(ticks)
    }

    /// The time between two ticks of a vCPU, in ns, at least 1: events have none, so that what is known of time is only
    /// the order of their ticks.
    pub fn interval_ns(self) -> u64 {
        match self.quantity {
            Quantity::Time => self.per_tick,
            Quantity::Events(_) => 1,
        }
    }

    /// The time that a tick stands for, in ns; 0 for an event.
    pub fn time_ns(self) -> u64 {
        match self.quantity {
            Quantity::Time => self.per_tick,
            Quantity::Events(_) => 0,
        }
    }

    /// perf's name for the event that takes the samples.
    pub fn perf_name(self) -> &'static str {
        match self.quantity {
            Quantity::Time => "cpu-clock",
            Quantity::Events(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_time_or_events() {
        let by_clock = RecordingInfo {
            hz: 250,
            ..RecordingInfo::default()
        };
        let time = Weight::of_tick(&by_clock);
        assert_eq!((time.of(3), time.quantity), (12_000_000, Quantity::Time));
        assert_eq!((time.interval_ns(), time.time_ns()), (4_000_000, 4_000_000));
        let by_event = RecordingInfo {
            event: Some("mmio-read:30".parse().unwrap()),
            ..RecordingInfo::default()
        };
        let events = Weight::of_tick(&by_event);
        assert_eq!(events.quantity, Quantity::Events("mmio-read"));
        assert_eq!(events.of(3), 90);
        assert_eq!((events.interval_ns(), events.time_ns()), (1, 0));
    }

    #[test]
    fn absurd_rates_are_borne() {
        for hz in [0, 1, u32::MAX] {
            let info = RecordingInfo {
                hz,
                ..RecordingInfo::default()
            };
            assert!(Weight::of_tick(&info).per_tick >= 1);
            assert!(Weight::of_tick(&info).of(u64::MAX) >= 1);
        }
    }
}
