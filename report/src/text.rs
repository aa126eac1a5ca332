//! Text for display. Guests choose names and can put anything into them.

use std::time::{Duration, SystemTime};

pub use kvmprof_abi::text::visible;

/// A time in ns since 1970 as text, to the second before it: `2026-11-25 22:15:31 UTC`; `None` for 0, which stands for an unknown one.
pub fn utc(ns: u64) -> Option<String> {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(ns));
    let time = time.filter(|_| ns > 0)?;
    // The form of RFC 3339 without its two letters.
    let text = humantime::format_rfc3339_seconds(time).to_string();
    Some(text.replace('T', " ").replace('Z', " UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_has_a_text() {
        assert_eq!(utc(0), None);
        assert_eq!(utc(1_999_999_999).unwrap(), "1970-01-01 00:00:01 UTC");
        assert_eq!(utc(u64::MAX).unwrap(), "2554-07-21 23:34:33 UTC");
    }
}
