//! How often a guest can have the program started that serves a folder: each reset of the device needs a new one.

use std::time::{Duration, Instant};

/// Number of starts that may follow each other at once, and the time after which there may be one more. A driver starts the device once a boot.
pub const AT_ONCE: u32 = 10;
pub const PAUSE: Duration = Duration::from_secs(1);

/// Counts starts.
#[derive(Debug)]
pub struct StartLimit {
    left: u32,
    /// The time by which the starts that are left were counted.
    counted: Instant,
}

impl StartLimit {
    /// All starts are left.
    pub fn new(now: Instant) -> Self {
        Self {
            left: AT_ONCE,
            counted: now,
        }
    }

    /// Whether there may be a start `now`.
    pub fn take(&mut self, now: Instant) -> bool {
        while self.left < AT_ONCE && now.saturating_duration_since(self.counted) >= PAUSE {
            self.left += 1;
            self.counted += PAUSE;
        }
        if self.left == AT_ONCE {
            self.counted = now;
        }
        let may_start = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may_start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_after_resets_are_limited_to_one_a_second() {
        let begin = Instant::now();
        let mut limit = StartLimit::new(begin);
        let starts = |limit: &mut StartLimit, from: u32, seconds: u32| -> usize {
            let times = (0..seconds * 1000)
                .map(|ms| begin + PAUSE * from + Duration::from_millis(ms.into()));
            times.filter(|time| limit.take(*time)).count()
        };
        assert_eq!(starts(&mut limit, 0, 1), 10);
        assert_eq!(starts(&mut limit, 1, 20), 20);
        // After a pause all are allowed again, and no more.
        assert_eq!(starts(&mut limit, 1000, 1), 10);
    }
}
