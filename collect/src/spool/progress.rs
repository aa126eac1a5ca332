//! How far a sink has come.

use serde::{Deserialize, Serialize};

use super::files::Entry;

/// Sums over batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Batches.
    pub batches: u64,
    /// Windows in them.
    pub windows: u64,
    /// Ticks in their rows.
    pub ticks: u64,
}

impl Counts {
    /// Adds one batch.
    pub fn add(&mut self, entry: &Entry) {
        self.batches += 1;
        self.windows += entry.windows;
        self.ticks += entry.ticks;
    }

    /// Adds a part of a batch.
    pub fn add_part(&mut self, windows: u64, ticks: u64) {
        self.windows += windows;
        self.ticks += ticks;
    }
}

/// Batches that are being handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
    /// The part of them that is handed over now, from 0: those before are done.
    pub part: u64,
    /// Whether it may have arrived: the collector was killed while it was sent.
    pub is_sent: bool,
}

impl Attempt {
    /// Whether the batch is one of them.
    pub fn contains(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// What has become of the batches for one sink. Whatever was in the spool is in one of the counts, or waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The next batch that is to be handed over.
    pub next: u64,
    /// Those that are being handed over.
    pub attempt: Option<Attempt>,
    /// What the sink has taken.
    pub delivered: Counts,
    /// What was removed because the spool was full, or couldn't be written or read.
    pub lost: Counts,
    /// What the sink has refused for good.
    pub refused: Counts,
    /// What was being sent when the collector was killed: it isn't sent again, since the sink may have it. Also requests that the sink has
    /// taken in part, without saying which part.
    pub unsure: Counts,
    /// Attempts that have failed and were made again.
    pub retries: u64,
}

impl Progress {
    /// Whether the sink still needs the batch.
    pub fn needs(&self, number: u64) -> bool {
        number >= self.next || self.is_in_flight(number)
    }

    /// The attempt has come to `part`, which may be on its way.
    pub fn go_on(&mut self, part: usize, is_sent: bool) {
        if let Some(attempt) = &mut self.attempt {
            (attempt.part, attempt.is_sent) = (part as u64, is_sent);
        }
    }

    /// Whether the batch is being handed over.
    pub fn is_in_flight(&self, number: u64) -> bool {
        self.attempt.is_some_and(|attempt| attempt.contains(number))
    }
}
