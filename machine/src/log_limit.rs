//! A limit for messages that clients or the guest can cause at will.

use std::time::{Duration, Instant};

/// Least time between two messages.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets one message a second through, and counts the others.
#[derive(Debug, Default)]
pub struct LogLimit {
    last: Option<Instant>,
    left_out: u64,
}

impl LogLimit {
    /// Whether there may be a message now; then what to add to it: how many were left out before it.
    pub fn take(&mut self) -> Option<String> {
        self.take_at(Instant::now())
    }

    fn take_at(&mut self, now: Instant) -> Option<String> {
        if (self.last).is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            count => format!(" ({count} more since the last such message)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_a_second_tells_of_the_others() {
        let mut limit = LogLimit::default();
        let begin = Instant::now();
        assert_eq!(limit.take_at(begin).as_deref(), Some(""));
        assert_eq!(limit.take_at(begin + PAUSE / 2), None);
        assert_eq!(limit.take_at(begin + PAUSE / 2), None);
        let later = limit.take_at(begin + PAUSE);
        assert_eq!(later.unwrap(), " (2 more since the last such message)");
        assert_eq!(limit.take_at(begin + 2 * PAUSE).as_deref(), Some(""));
    }
}
