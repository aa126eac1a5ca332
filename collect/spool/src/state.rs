//! The batches in the spool, and the positions of the sinks.

use std::collections::{BTreeMap, BTreeSet};

use super::{Attempt, Entry, OpenWindows, Progress};

/// Maximum number of batches, and of their packed bytes, that a sink gets at a time.
const MAX_CLAIM: usize = 720;
const MAX_CLAIM_BYTES: u64 = 16 << 20;

/// Whether the spool is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// More batches come.
    #[default]
    Open,
    /// No more batches come. The sinks take those that there are.
    Draining,
    /// No more batches come, and those that there are stay.
    Closed,
}

/// A sink in the spool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SinkPosition {
    /// Its progress.
    pub(super) progress: Progress,
    /// The progress that is on the disk. A batch stays until no sink needs it by this, too.
    pub(super) saved: Progress,
    /// Number of batches that it still needs.
    pub(super) waiting: u64,
    /// Whether it has ended by a fault of the program.
    pub(super) has_failed: bool,
}

/// The state of the spool.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) bytes: u64,
    pub(super) collected: OpenWindows,
    pub(super) sinks: BTreeMap<String, SinkPosition>,
    /// Sinks whose progress isn't written yet, or couldn't be written.
    pub(super) unsaved: BTreeSet<String>,
    pub(super) end: End,
}

impl State {
    /// Adds a sink with the progress that is on the disk. All batches have been added before.
    pub(super) fn add_sink(&mut self, sink: &str, progress: Progress) {
        let needed = self
            .entries
            .keys()
            .filter(|number| progress.needs(**number));
        let position = SinkPosition {
            progress,
            saved: progress,
            waiting: needed.count() as u64,
            has_failed: false,
        };
        self.sinks.insert(sink.to_owned(), position);
    }

    /// Adds a batch, whose number is above those of all batches that sinks have received.
    pub(super) fn insert(&mut self, entry: Entry) {
        self.bytes += entry.bytes;
        self.entries.insert(entry.number, entry);
        for position in self.sinks.values_mut() {
            position.waiting += 1;
        }
    }

    /// Takes out a batch that isn't being delivered. It is lost for the sinks that need it.
    pub(super) fn lose(&mut self, entry: &Entry) {
        for (sink, position) in &mut self.sinks {
            let progress = &mut position.progress;
            if progress.next > entry.number {
                continue;
            }
            progress.lost.add(entry);
            // Earlier batches that the sink hasn't claimed are still its next ones: this may be the newest, or other sinks may be receiving them.
            let mut before = self.entries.range(progress.next..entry.number);
            if before.next().is_none() {
                progress.next = entry.number + 1;
            }
            position.waiting = position.waiting.saturating_sub(1);
            self.unsaved.insert(sink.clone());
        }
        self.remove(entry);
    }

    fn remove(&mut self, entry: &Entry) {
        if self.entries.remove(&entry.number).is_some() {
            self.bytes = self.bytes.saturating_sub(entry.bytes);
        }
    }

    /// Notes that the sink has claimed these batches.
    pub(super) fn claim(&mut self, sink: &str, attempt: Attempt) {
        if let Some(position) = self.sinks.get_mut(sink) {
            position.progress.attempt = Some(attempt);
            position.progress.next = attempt.last + 1;
        }
    }

    /// Ends the sink's attempt, which is returned.
    pub(super) fn finish(&mut self, sink: &str) -> Option<Attempt> {
        let position = self.sinks.get_mut(sink)?;
        let attempt = position.progress.attempt.take()?;
        let done = self.entries.range(attempt.first..=attempt.last).count();
        position.waiting = position.waiting.saturating_sub(done as u64);
        Some(attempt)
    }

    /// Takes out those of the batches with the numbers from `first` to `last` that no sink needs, also by the progress on the disk. Without sinks all stay.
    pub(super) fn take_done(&mut self, first: u64, last: u64) -> Vec<Entry> {
        if self.sinks.is_empty() || first > last {
            return Vec::new();
        }
        let is_done = |entry: &&Entry| {
            let mut sinks = self.sinks.values();
            sinks.all(|position| {
                !position.progress.needs(entry.number) && !position.saved.needs(entry.number)
            })
        };
        let claimed = self.entries.range(first..=last).map(|(_, entry)| entry);
        let done: Vec<Entry> = claimed.filter(is_done).copied().collect();
        done.iter().for_each(|entry| self.remove(entry));
        done
    }

    /// Notes the progress of a sink that is on the disk.
    pub(super) fn note_saved(&mut self, sink: &str, saved: Progress) {
        if let Some(position) = self.sinks.get_mut(sink) {
            position.saved = saved;
            if position.progress == saved {
                self.unsaved.remove(sink);
            }
        }
    }

    /// The oldest batch that isn't being delivered.
    pub(super) fn oldest_free(&self) -> Option<Entry> {
        let is_free = |entry: &&Entry| {
            let mut sinks = self.sinks.values();
            !sinks.any(|position| position.progress.is_in_flight(entry.number))
        };
        self.entries.values().find(is_free).copied()
    }

    /// The batches from `next` on that cover about `span` seconds, or fewer if the spool is being drained. `None` if there aren't enough.
    pub(super) fn enough(&self, next: u64, span: u64) -> Option<Attempt> {
        let mut entries = self.entries.range(next..).map(|(_, entry)| entry);
        let first = entries.next()?;
        let (mut last, mut bytes, mut count) = (first, first.bytes, 1);
        let mut is_enough = span == 0;
        if !is_enough {
            for entry in entries {
                bytes += entry.bytes;
                count += 1;
                // The batch at which the span is reached begins the next file.
                is_enough = entry.start.abs_diff(first.start) >= span
                    || count > MAX_CLAIM
                    || bytes > MAX_CLAIM_BYTES;
                if is_enough {
                    break;
                }
                last = entry;
            }
        }
        (is_enough || self.end == End::Draining).then_some(Attempt {
            first: first.number,
            last: last.number,
            part: 0,
            is_sent: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SINKS: [&str; 3] = ["a", "b", "c"];

    #[derive(Clone, Debug)]
    enum Step {
        Push,
        Lose,
        Claim(usize, u64),
        /// The sink's index, and whether its progress is written to the disk.
        Finish(usize, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Push),
            1 => Just(Step::Lose),
            3 => (0..SINKS.len(), 0..40_u64).prop_map(|(sink, span)| Step::Claim(sink, span)),
            3 => (0..SINKS.len(), any::<bool>()).prop_map(|(sink, saved)| Step::Finish(sink, saved)),
        ]
    }

    fn save(state: &mut State, sink: &str) {
        let progress = state.sinks[sink].progress;
        state.note_saved(sink, progress);
    }

    /// Performs a step. Returns the batches that it removed.
    fn take(state: &mut State, step: &Step) -> Vec<Entry> {
        match step {
            Step::Push => {
                let number = state.collected.next;
                state.collected.next += 1;
                state.insert(Entry {
                    number,
                    start: 10 * number,
                    windows: 2,
                    ticks: 3,
                    bytes: 100 + number,
                });
            }
            Step::Lose => {
                let Some(oldest) = state.oldest_free() else {
                    return Vec::new();
                };
                state.lose(&oldest);
                for sink in SINKS {
                    save(state, sink);
                }
            }
            Step::Claim(sink, span) => {
                let sink = SINKS[*sink];
                let progress = state.sinks[sink].progress;
                let attempt = state.enough(progress.next, *span);
                if let (None, Some(attempt)) = (progress.attempt, attempt) {
                    state.claim(sink, attempt);
                    save(state, sink);
                }
            }
            Step::Finish(sink, is_saved) => {
                let sink = SINKS[*sink];
                let Some(attempt) = state.finish(sink) else {
                    return Vec::new();
                };
                if *is_saved {
                    save(state, sink);
                }
                return state.take_done(attempt.first, attempt.last);
            }
        }
        Vec::new()
    }

    proptest! {
        /// The counts that each step updates equal those of a walk over all batches.
        #[test]
        fn counts_are_those_of_a_walk(steps in prop::collection::vec(step(), 0..80)) {
            let mut state = State::default();
            for sink in SINKS {
                state.add_sink(sink, Progress::default());
            }
            for step in &steps {
                for gone in take(&mut state, step) {
                    for position in state.sinks.values() {
                        prop_assert!(!position.progress.needs(gone.number));
                        // After a crash, a batch of an attempt that is repeated exists.
                        prop_assert!(!position.saved.needs(gone.number));
                    }
                }
                let bytes: u64 = state.entries.values().map(|entry| entry.bytes).sum();
                prop_assert_eq!(state.bytes, bytes);
                for position in state.sinks.values() {
                    let needed = state.entries.keys().filter(|number| position.progress.needs(**number));
                    prop_assert_eq!(position.waiting, needed.count() as u64);
                }
            }
            // Once all progress is on the disk, exactly the batches that no sink needs are removed.
            for sink in SINKS {
                save(&mut state, sink);
            }
            state.take_done(0, u64::MAX);
            for number in state.entries.keys() {
                let mut positions = state.sinks.values();
                prop_assert!(positions.any(|position| position.progress.needs(*number)));
            }
        }
    }
}
