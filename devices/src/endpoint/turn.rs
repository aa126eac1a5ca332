//! How much of one connection is served before others have their turn.

use std::time::Duration;

/// The number of requests that are served in a turn: thousands fit into what a client may send at once.
pub const REQUESTS_PER_TURN: usize = 64;

/// How long a turn's requests may take, the last one aside: some take a millisecond each, when a guest and clients have seen to that.
pub const TURN_TIME: Duration = Duration::from_millis(1);

/// What is left of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    requests: usize,
    /// `None`: any time.
    time: Option<Duration>,
}

impl Turn {
    /// A turn that takes any time.
    pub fn new() -> Self {
        Self {
            requests: REQUESTS_PER_TURN,
            time: None,
        }
    }

    /// It takes `time` at most, and as long as the request takes that is being served then.
    pub fn limit(&mut self, time: Duration) {
        self.time = Some(time);
    }

    /// A request was served, which took this long.
    pub fn spend(&mut self, time: Duration) {
        self.requests = self.requests.saturating_sub(1);
        self.time = self.time.map(|left| left.saturating_sub(time));
        if self.time == Some(Duration::ZERO) {
            self.requests = 0;
        }
    }

    /// Whether no more requests are served.
    pub fn is_over(&self) -> bool {
        self.requests == 0
    }
}
