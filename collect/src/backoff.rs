//! The waits before attempts that have failed are repeated.

use std::time::Duration;

/// The wait before the next attempt: it doubles at each one, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    wait: Duration,
}

impl Backoff {
    /// For guests and processes of this host: from a second to a minute.
    pub const LOCAL: Self = Self::between(Duration::from_secs(1), Duration::from_secs(60));

    /// Waits from `first` to `longest`.
    pub const fn between(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            wait: first,
        }
    }

    /// The longest wait.
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// How long to wait now. The next wait is twice as long.
    pub fn advance(&mut self) -> Duration {
        let wait = self.wait;
        self.wait = (2 * wait).min(self.longest);
        wait
    }

    /// Has the next wait be the first one again.
    pub fn reset(&mut self) {
        self.wait = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_maximum_and_begin_anew() {
        let mut backoff = Backoff::LOCAL;
        let mut waits = || {
            (0..8)
                .map(|_| backoff.advance().as_secs())
                .collect::<Vec<_>>()
        };
        assert_eq!(waits(), [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.reset();
        assert_eq!(backoff.advance(), Duration::from_secs(1));
        assert_eq!(backoff.longest(), Duration::from_secs(60));
    }
}
