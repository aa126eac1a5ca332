//! Rates of the clock for consumers that count at a rate of their own.

use crate::clock::TickSource;

/// How often ticks of `source` come for a consumer that counts `rate_hz` times a second, in Hz: all of an event count, as of
/// a clock at that rate. 0: there are none.
pub(super) fn ticks_a_second(source: Option<TickSource>, rate_hz: u32) -> u32 {
    match source {
        Some(TickSource::Event(_)) => rate_hz,
        Some(TickSource::Clock(hz)) => hz,
        None => 0,
    }
}

/// Checks rates of the clock, and tells in the log of those that won't do.
#[derive(Debug, Default)]
pub(super) struct RateCheck {
    /// The last rate that wouldn't do, in Hz.
    refused_hz: Option<u32>,
}

impl RateCheck {
    /// Whether ticks of a clock at `hz` can be counted `rate_hz` times a second. If not, the log has that `who` (`prf
    /// counts`) needs it: once for each rate, for a guest may go on trying.
    pub(super) fn divides(&mut self, hz: u32, rate_hz: u32, who: &str) -> bool {
        if hz != 0 && hz.is_multiple_of(rate_hz) {
            return true;
        }
        if self.refused_hz.replace(hz) != Some(hz) {
            log::warn!(
                "{who} {rate_hz} times a second and can't be turned on with the clock at {hz} Hz: give run --hz (or pcs, \
                 if that has changed the rate) a multiple of {rate_hz}"
            );
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_can_be_counted_are_multiples() {
        let mut check = RateCheck::default();
        for (hz, expected) in [
            (0, false),
            (50, false),
            (100, true),
            (250, false),
            (300, true),
        ] {
            assert_eq!(check.divides(hz, 100, "the test counts"), expected, "{hz}");
        }
    }
}
