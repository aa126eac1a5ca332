//! Rates of the clock, for consumers that count at a rate of their own.

use crate::clock::TickSource;

/// The rate in Hz of the ticks of `source` for a consumer that counts `rate_hz` times a second. All ticks of an event count, like those of
/// a clock at that rate. 0 if there are no ticks.
pub(super) fn ticks_a_second(source: Option<TickSource>, rate_hz: u32) -> u32 {
    match source {
        Some(TickSource::Event(_)) => rate_hz,
        Some(TickSource::Clock(hz)) => hz,
        None => 0,
    }
}

/// Whether a consumer that has counted `rate_hz` times a second by `own` can continue when `source` makes the ticks.
pub(super) fn can_follow(
    own: Option<TickSource>,
    source: Option<TickSource>,
    rate_hz: u32,
) -> bool {
    match (own, source) {
        (Some(TickSource::Clock(_)), Some(TickSource::Clock(hz))) => hz.is_multiple_of(rate_hz),
        _ => own == source,
    }
}

/// Maximum number of unusable rates that are logged.
const MAX_WARNED: usize = 16;

/// Checks rates of the clock, and logs the unusable ones.
#[derive(Debug, Default)]
pub(super) struct RateCheck {
    /// The rates that have been logged, in Hz.
    warned_hz: Vec<u32>,
}

impl RateCheck {
    /// Whether ticks of a clock at `hz` can be counted `rate_hz` times a second. If not, logs that `who` (`prf counts`) needs it. Each rate
    /// is logged once, and [`MAX_WARNED`] rates at most, because a client or a guest may repeat its attempts.
    pub(super) fn divides(&mut self, hz: u32, rate_hz: u32, who: &str) -> bool {
        if hz != 0 && hz.is_multiple_of(rate_hz) {
            return true;
        }
        if self.warned_hz.len() == MAX_WARNED || self.warned_hz.contains(&hz) {
            return false;
        }
        self.warned_hz.push(hz);
        log::warn!(
            "{who} {rate_hz} times a second and can't be turned on with the clock at {hz} Hz: give run --hz (or pcs, \
             if that has changed the rate) a multiple of {rate_hz}"
        );
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_sources_of_ticks_share_a_clock() {
        let clock = TickSource::clock;
        let event = "exits:10".parse().ok().map(TickSource::Event);
        assert!(can_follow(clock(100), clock(300), 100));
        assert!(!can_follow(clock(100), clock(250), 100));
        assert!(!can_follow(clock(100), event, 100) && !can_follow(event, clock(100), 100));
        assert!(can_follow(event, event, 100));
    }

    #[test]
    fn rates_that_can_be_counted_are_multiples() {
        let mut check = RateCheck::default();
        let rates = [0, 50, 100, 250, 300].map(|hz| check.divides(hz, 100, "the test counts"));
        assert_eq!(rates, [false, false, true, false, true]);
    }

    #[test]
    fn the_log_has_each_rate_once_up_to_a_limit() {
        let mut check = RateCheck::default();
        check.divides(50, 100, "the test counts");
        check.divides(250, 100, "the test counts");
        check.divides(50, 100, "the test counts");
        assert_eq!(check.warned_hz, [50, 250]);
        for hz in 1..100 {
            check.divides(hz, 100, "the test counts");
        }
        assert_eq!(check.warned_hz.len(), MAX_WARNED);
    }
}
