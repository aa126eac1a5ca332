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

/// A sink in the spool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// How far it has come.
    pub(super) progress: Progress,
    /// What is on the disk of that: a batch stays until no sink needs it by that, too.
    pub(super) saved: Progress,
    /// How many batches it still needs.
    pub(super) waiting: u64,
    /// Whether it has ended by a fault of the program.
    pub(super) has_failed: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) bytes: u64,
    pub(super) collected: Collected,
    pub(super) sinks: BTreeMap<String, Place>,
    /// Sinks whose progress isn't written yet, or couldn't be, as on a full disk.
    pub(super) unsaved: BTreeSet<String>,
    pub(super) end: End,
}

impl State {
    /// Adds a sink that has come so far, by what is on the disk. All batches are there already.
    pub(super) fn add_sink(&mut self, sink: &str, progress: Progress) {
        let needed = self
            .entries
            .keys()
            .filter(|number| progress.needs(**number));
        let place = Place {
            progress,
            saved: progress,
            waiting: needed.count() as u64,
            has_failed: false,
        };
        self.sinks.insert(sink.to_owned(), place);
    }

    /// Adds a batch, whose number is above all that sinks have had.
    pub(super) fn insert(&mut self, entry: Entry) {
        self.bytes += entry.bytes;
        self.entries.insert(entry.number, entry);
        for place in self.sinks.values_mut() {
            place.waiting += 1;
        }
    }

    /// Takes out a batch that nobody is handing over. It is lost for the sinks that need it.
    pub(super) fn lose(&mut self, entry: &Entry) {
        for (sink, place) in &mut self.sinks {
            let progress = &mut place.progress;
            if progress.next > entry.number {
                continue;
            }
            progress.lost.add(entry);
            // Those before it that the sink hasn't claimed stay its next ones: this one may be the newest, or others' may be in flight.
            let mut before = self.entries.range(progress.next..entry.number);
            if before.next().is_none() {
                progress.next = entry.number + 1;
            }
            place.waiting = place.waiting.saturating_sub(1);
            self.unsaved.insert(sink.clone());
        }
        self.remove(entry);
    }

    fn remove(&mut self, entry: &Entry) {
        if self.entries.remove(&entry.number).is_some() {
            self.bytes = self.bytes.saturating_sub(entry.bytes);
        }
    }

    /// The sink has claimed these batches.
    pub(super) fn claim(&mut self, sink: &str, attempt: Attempt) {
        if let Some(place) = self.sinks.get_mut(sink) {
            place.progress.attempt = Some(attempt);
            place.progress.next = attempt.last + 1;
        }
    }

    /// The sink is through with what it has claimed, which is returned.
    pub(super) fn finish(&mut self, sink: &str) -> Option<Attempt> {
        let place = self.sinks.get_mut(sink)?;
        let attempt = place.progress.attempt.take()?;
        let done = self.entries.range(attempt.first..=attempt.last).count();
        place.waiting = place.waiting.saturating_sub(done as u64);
        Some(attempt)
    }

    /// Takes out those of the batches with the numbers from `first` to `last` that no sink needs, neither by what is on the disk. Without sinks all stay.
    pub(super) fn take_done(&mut self, first: u64, last: u64) -> Vec<Entry> {
        if self.sinks.is_empty() || first > last {
            return Vec::new();
        }
        let is_done = |entry: &&Entry| {
            let mut sinks = self.sinks.values();
            sinks.all(|place| {
                !place.progress.needs(entry.number) && !place.saved.needs(entry.number)
            })
        };
        let claimed = self.entries.range(first..=last).map(|(_, entry)| entry);
        let done: Vec<Entry> = claimed.filter(is_done).copied().collect();
        done.iter().for_each(|entry| self.remove(entry));
        done
    }

    /// Takes note of what is on the disk of a sink's progress, and of whether that is all.
    pub(super) fn note_saved(&mut self, sink: &str, saved: Progress) {
        if let Some(place) = self.sinks.get_mut(sink) {
            place.saved = saved;
            if place.progress == saved {
                self.unsaved.remove(sink);
            }
        }
    }

    /// The oldest batch that isn't being handed over.
    pub(super) fn oldest_free(&self) -> Option<Entry> {
        let is_free = |entry: &&Entry| {
            let mut sinks = self.sinks.values();
            !sinks.any(|place| place.progress.is_in_flight(entry.number))
        };
        self.entries.values().find(is_free).copied()
    }

    /// The batches from `next` on that are about `span` seconds; fewer if the spool is drained. `None` if there aren't so many.
    pub(super) fn enough(&self, next: u64, span: u64) -> Option<Attempt> {
        let mut entries = self.entries.range(next..).map(|(_, entry)| entry);
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
        /// Of a sink; and whether that gets to the disk.
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

    /// Does it, and returns the batches that have gone.
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
        /// What is counted as things change is what a walk over all batches counts.
        #[test]
        fn counts_are_those_of_a_walk(steps in prop::collection::vec(step(), 0..80)) {
            let mut state = State::default();
            for sink in SINKS {
                state.add_sink(sink, Progress::default());
            }
            for step in &steps {
                for gone in take(&mut state, step) {
                    for place in state.sinks.values() {
                        prop_assert!(!place.progress.needs(gone.number));
                        // After a crash, a batch of an attempt that is begun again is there.
                        prop_assert!(!place.saved.needs(gone.number));
                    }
                }
                let bytes: u64 = state.entries.values().map(|entry| entry.bytes).sum();
                prop_assert_eq!(state.bytes, bytes);
                for place in state.sinks.values() {
                    let needed = state.entries.keys().filter(|number| place.progress.needs(**number));
                    prop_assert_eq!(place.waiting, needed.count() as u64);
                }
            }
            // Once all is on the disk, what nobody needs has gone, and nothing else.
            for sink in SINKS {
                save(&mut state, sink);
            }
            state.take_done(0, u64::MAX);
            for number in state.entries.keys() {
                let mut places = state.sinks.values();
                prop_assert!(places.any(|place| place.progress.needs(*number)));
            }
        }
    }
}
