//! Parsers of command-line values, for clap's `value_parser`. Each error describes the valid values.

use std::time::Duration;

use kvmprof_abi::pcs::{MAX_HZ, MIN_HZ};

/// Maximum waiting time, in seconds: a year. Later times might overflow the clock.
const YEAR: u64 = 366 * 24 * 3600;

/// A time in seconds, more than 0 and at most a year.
///
/// # Errors
/// `text` is invalid.
pub fn seconds(text: &str) -> Result<Duration, String> {
    duration(text, 1, YEAR, "seconds")
}

/// A time in seconds, more than 0 and at most a day.
///
/// # Errors
/// `text` is invalid.
pub fn seconds_of_a_day(text: &str) -> Result<Duration, String> {
    duration(text, 1, 24 * 3600, "seconds")
}

/// A time in seconds, more than 0 and at most an hour.
///
/// # Errors
/// `text` is invalid.
pub fn seconds_of_an_hour(text: &str) -> Result<Duration, String> {
    duration(text, 1, 3600, "seconds")
}

/// A time in minutes, more than 0 and at most a year.
///
/// # Errors
/// `text` is invalid.
pub fn minutes(text: &str) -> Result<Duration, String> {
    duration(text, 60, YEAR, "minutes")
}

/// A time of `text` units of `seconds` seconds, more than 0 and at most `most` units.
fn duration(text: &str, seconds: u32, most: u64, unit: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .and_then(|number| Duration::try_from_secs_f64(number * f64::from(seconds)).ok())
        .filter(|time| !time.is_zero() && *time <= Duration::from_secs(most))
        .ok_or_else(|| {
            let most = most / u64::from(seconds);
            format!("a number of {unit} is needed, more than 0 and at most {most}")
        })
}

/// A rate of the profiling clock in Hz, 1 to 10000.
///
/// # Errors
/// `text` is invalid.
pub fn rate(text: &str) -> Result<u32, String> {
    rate_at_least(text, MIN_HZ)
        .ok_or_else(|| format!("a rate in Hz is needed, from {MIN_HZ} to {MAX_HZ}"))
}

/// Like [`rate`], or 0 for no clock.
///
/// # Errors
/// `text` is invalid.
pub fn rate_or_none(text: &str) -> Result<u32, String> {
    rate_at_least(text, 0).ok_or_else(|| {
        format!("a rate in Hz is needed, from {MIN_HZ} to {MAX_HZ}, or 0 for no clock")
    })
}

fn rate_at_least(text: &str, least: u32) -> Option<u32> {
    let hz = text.parse().ok();
    hz.filter(|hz| (least..=MAX_HZ).contains(hz))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_positive_and_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(minutes("0.5"), Ok(Duration::from_secs(30)));
        assert_eq!(seconds_of_an_hour("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["0", "-1", "x", "", "inf", "NaN", "1e30", "1e-30", "5 s"] {
            for parser in [seconds, seconds_of_a_day, seconds_of_an_hour, minutes] {
                assert!(parser(wrong).is_err(), "{wrong}");
            }
        }
        assert_eq!(
            seconds_of_an_hour("3601").unwrap_err(),
            "a number of seconds is needed, more than 0 and at most 3600"
        );
        assert!(seconds_of_a_day("86401").is_err());
    }

    #[test]
    fn rates_are_those_of_the_clock() {
        assert_eq!(rate("1"), Ok(1));
        assert_eq!(rate_or_none("0"), Ok(0));
        for wrong in ["0", "10001", "-1", "ten", "100.5", ""] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert!(
            rate_or_none("10001")
                .unwrap_err()
                .contains("0 for no clock")
        );
    }
}
