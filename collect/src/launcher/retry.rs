//! When an attempt is made again.

use std::time::Instant;

use crate::backoff::Backoff;

/// When something is done again, each time after a longer wait. What has gone well for as long as the longest wait begins anew.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) until: Instant,
    backoff: Backoff,
    pub(super) begun: Instant,
}

impl Retry {
    /// It is due.
    pub(super) fn now() -> Self {
        let now = Instant::now();
        Self {
            until: now,
            backoff: Backoff::LOCAL,
            begun: now,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.until
    }

    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// It has ended. The next attempt has the first wait before it if it `has_succeeded` or lasted.
    pub(super) fn end(&mut self, has_succeeded: bool) {
        if has_succeeded || self.begun.elapsed() >= self.backoff.longest() {
            self.backoff.reset();
        }
        self.until = Instant::now() + self.backoff.advance();
    }
}
