//! The tick of the host's kernel.

use kvmprof_recording::least_common_multiple;

/// Maximum distance between two ticks of a clock that coincide with the host's, in ns. Further apart they save nothing.
const MAXIMUM_DISTANCE: u64 = 1_000_000_000;

/// The period of the tick of the host's kernel (`CONFIG_HZ`).
///
/// The kernel ticks at multiples of its period of CLOCK_MONOTONIC on each processor that isn't idle (`tick_setup_sched_timer`,
/// `kernel/time/tick-sched.c`). A timer that expires then makes no interrupt of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTick {
    // In ns; 0 if it isn't known.
    period: u64,
}

impl HostTick {
    /// That of this host: the resolution of its coarse clocks.
    pub fn of_this_host() -> Self {
        let resolution = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
        let seconds = resolution.tv_sec.unsigned_abs();
        Self {
            period: (seconds * 1_000_000_000).saturating_add(resolution.tv_nsec.unsigned_abs()),
        }
    }

    /// The distance between those ticks of a clock that coincide with the host's, in ns, if the clock ticks at all multiples of `period` (ns).
    /// They are at multiples of this distance. `None` if they are too rare.
    pub fn coincidence(self, period: u64) -> Option<u64> {
        let distance = least_common_multiple(self.period, period);
        (1..=MAXIMUM_DISTANCE)
            .contains(&distance)
            .then_some(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_one() {
        let HostTick { period } = HostTick::of_this_host();
        // CONFIG_HZ is 100 to 1000.
        assert!((900_000..=10_100_000).contains(&period), "{period}");
    }

    #[test]
    fn ticks_coincide_at_multiples_of_both_periods() {
        let at_250_hz = HostTick { period: 4_000_000 };
        let distances = [
            (10_000_000, Some(20_000_000)),
            (4_000_000, Some(4_000_000)),
            (1_000_000, Some(4_000_000)),
            (200_000, Some(4_000_000)),
            (1_000_000_000, Some(1_000_000_000)),
            // 300 Hz and 7 Hz: periods are whole numbers of ns.
            (3_333_333, None),
            (142_857_142, None),
            (0, None),
        ];
        for (period, distance) in distances {
            assert_eq!(at_250_hz.coincidence(period), distance, "{period}");
        }
        let unknown = HostTick { period: 0 };
        assert_eq!(unknown.coincidence(1_000_000), None);
    }
}
