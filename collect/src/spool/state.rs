//! What is in the spool, and which batches are next.

use std::collections::{BTreeMap, BTreeSet};

use super::{Attempt, Collected, Entry, Progress};

/// Batches, and packed bytes of them, that are handed over at a time, at most.
const MAX_CLAIM: usize = 720;
const MAX_CLAIM_BYTES: u64 = 16 << 20;

/// What is to come of the spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// More batches come.
    #[default]
    Open,
    /// None come; the sinks take those that are there.
    Draining,
    /// What is there stays.
    Closed,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) bytes: u64,
    pub(super) collected: Collected,
    pub(super) sinks: BTreeMap<String, Progress>,
    /// Sinks whose progress isn't written yet, or couldn't be, as on a full disk.
    pub(super) unsaved: BTreeSet<String>,
    pub(super) end: End,
}

/// The oldest batch that isn't being handed over.
pub(super) fn oldest_free(state: &State) -> Option<Entry> {
    let is_free = |entry: &&Entry| {
        let mut sinks = state.sinks.values();
        !sinks.any(|progress| progress.is_in_flight(entry.number))
    };
    state.entries.values().find(is_free).copied()
}

/// The batches from `next` on that are about `span` seconds; fewer if the spool is drained. `None` if there aren't so many.
pub(super) fn enough(state: &State, next: u64, span: u64) -> Option<Attempt> {
    let mut entries = state.entries.range(next..).map(|(_, entry)| entry);
    let first = entries.next()?;
    let (mut last, mut bytes, mut count) = (first, first.bytes, 1);
    let mut is_enough = span == 0;
    if !is_enough {
        for entry in entries {
            bytes += entry.bytes;
            count += 1;
            // The one that completes the time begins the next file.
            is_enough = entry.start.abs_diff(first.start) >= span
                || count > MAX_CLAIM
                || bytes > MAX_CLAIM_BYTES;
            if is_enough {
                break;
            }
            last = entry;
        }
    }
    (is_enough || state.end == End::Draining).then_some(Attempt {
        first: first.number,
        last: last.number,
        part: 0,
        is_sent: false,
    })
}
