//! Times in the local time zone.

use std::fmt;

/// A time in the local time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    year: i64,
    month: i32,
    day: i32,
    /// The hour, 0 to 23.
    pub hour: i32,
    minute: i32,
    second: i32,
}

impl LocalTime {
    /// The time `seconds` after the start of 1970 in UTC; `None` outside the calendar's range.
    pub fn from_unix(seconds: i64) -> Option<Self> {
        let time: libc::time_t = seconds;
        let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
        // SAFETY: both pointers are to live values of the right types.
        let filled = unsafe { libc::localtime_r(&raw const time, parts.as_mut_ptr()) };
        if filled.is_null() {
            return None;
        }
        // SAFETY: all zeros are a valid `tm`, and it has been filled in.
        let parts = unsafe { parts.assume_init() };
        Some(Self {
            year: 1900 + i64::from(parts.tm_year),
            month: parts.tm_mon + 1,
            day: parts.tm_mday,
            hour: parts.tm_hour,
            minute: parts.tm_min,
            second: parts.tm_sec,
        })
    }
}

impl fmt::Display for LocalTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = self;
        write!(
            formatter,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_shown_as_date_and_time() {
        // This machine's zone is unknown, but no zone is more than 14 hours from UTC.
        let time = LocalTime::from_unix(1_000_000_000 + 12 * 3600).unwrap();
        assert!((0..24).contains(&time.hour));
        let text = time.to_string();
        assert!(text.starts_with("2001-09-"), "{text}");
        assert_eq!(text.len(), "2001-09-09 13:46:40".len());
        assert_eq!(LocalTime::from_unix(i64::MAX), None);
    }
}
