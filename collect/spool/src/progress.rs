//! The progress of a sink.

use serde::{Deserialize, Serialize};

use super::files::Entry;

/// Sums over batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Number of batches.
    pub batches: u64,
    /// Number of windows.
    pub windows: u64,
    /// Number of ticks in the windows' rows.
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

/// An attempt to deliver batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The number of the first batch.
    pub first: u64,
    /// The number of the last batch.
    pub last: u64,
    /// The part that is being delivered, from 0. Earlier parts are done.
    pub part: u64,
    /// Whether the part may have arrived: it is being sent, or was when the collector was killed.
    pub is_sent: bool,
}

impl Attempt {
    /// Whether the batch belongs to the attempt.
    pub fn contains(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// The progress of one sink. Each batch that was in the spool is in one of the counts, or waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The number of the next batch to deliver.
    pub next: u64,
    /// The batches that are being delivered.
    pub attempt: Option<Attempt>,
    /// Data that the sink has accepted.
    pub delivered: Counts,
    /// Data that were removed because the spool was full, or that couldn't be written or read.
    pub lost: Counts,
    /// Data that the sink has refused and that aren't sent again.
    pub refused: Counts,
    /// Data that were being sent when the collector was killed: they aren't sent again, since the sink may have received them. Also requests that the sink
    /// has accepted in part, without saying which part.
    pub unsure: Counts,
    /// Number of attempts that failed and were repeated.
    pub retries: u64,
}

impl Progress {
    /// Whether the sink still needs the batch.
    pub fn needs(&self, number: u64) -> bool {
        number >= self.next || self.is_in_flight(number)
    }

    /// Notes that the attempt has come to `part`, and whether that is being sent.
    pub fn go_on(&mut self, part: usize, is_sent: bool) {
        if let Some(attempt) = &mut self.attempt {
            (attempt.part, attempt.is_sent) = (part as u64, is_sent);
        }
    }

    /// Whether the batch is being delivered.
    pub fn is_in_flight(&self, number: u64) -> bool {
        self.attempt.is_some_and(|attempt| attempt.contains(number))
    }
}
