//! What was collected and waits for the sinks, in a folder.
//!
//! Each batch is a file. A sink has a position, which is in a file, too; a batch is removed when all sinks have it, or when there is no
//! room: then the oldest goes, and counts as lost for each sink that doesn't have it.
//!
//! Nobody waits for the disk while the state is locked. The locks are taken in this order: `writing`, a sink's `notes`, `state`.

mod error;
mod files;
mod notes;
mod progress;
mod state;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
pub use error::SpoolError;
pub use files::Entry;
use files::Folder;
use notes::Notes;
pub use notes::read_progress;
pub use progress::{Attempt, Counts, Progress};
use state::{End, State};

/// The file with what is being collected.
const STATE: &str = "state.json";

/// What was being collected, by which a later collector counts what a killed one has lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Collected {
    /// The number of the next batch.
    next: u64,
    /// Open windows: their start, and how many guests have one.
    open: BTreeMap<u64, u64>,
    /// Windows that were open when a collector was killed.
    killed: u64,
}

/// How full the spool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Batches.
    pub batches: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Windows that were open when a collector was killed.
    pub killed: u64,
}

/// A sink's part of the spool: batches that it is to take.
#[derive(Debug)]
pub struct Claim {
    /// Which they are.
    pub attempt: Attempt,
    /// What is in them. Files that can't be read are left out, and count as lost.
    pub batches: Vec<Batch>,
}

/// The spool. Threads share it.
#[derive(Debug)]
pub struct Spool {
    folder: Folder,
    limit: u64,
    /// Held by who writes batches, and the file with what is being collected.
    writing: Mutex<()>,
    notes: BTreeMap<String, Mutex<Notes>>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a lock guards, though whoever had it has panicked: it is written whole, or not at all.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spool {
    /// Opens the spool in the folder at `path` for these `sinks`, which is to take `limit` bytes at most.
    ///
    /// # Errors
    /// [`SpoolError`].
    pub fn open(path: &Path, limit: u64, sinks: &[&str]) -> Result<Self, SpoolError> {
        let folder = Folder::open(path)?;
        let mut state = State::default();
        for entry in folder.batches()? {
            state.insert(entry);
        }
        let mut collected: Collected = folder.read_json(STATE)?.unwrap_or_default();
        let last = state.entries.last_key_value();
        let after = last.map_or(0, |(number, _)| number + 1);
        collected.next = after.max(collected.next);
        let mut notes = BTreeMap::new();
        for sink in sinks {
            let (found, is_there) = Notes::open(&folder, sink)?;
            if !is_there {
                // On a full disk it can only take an older one's place.
                state.unsaved.insert((*sink).to_owned());
            }
            let progress = found.last();
            // The sink's file was written, and the state wasn't: a number is given once.
            collected.next = collected.next.max(progress.next);
            state.add_sink(sink, progress);
            notes.insert((*sink).to_owned(), Mutex::new(found));
        }
        state.collected = collected;
        let open = std::mem::take(&mut state.collected.open);
        state.collected.killed += open.values().sum::<u64>();
        let spool = Self {
            folder,
            limit,
            writing: Mutex::new(()),
            notes,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        spool.save_first()?;
        Ok(spool)
    }

    /// Writes what is known at the start, and removes what all sinks have. On a full disk the oldest batch goes, if nothing else does: no sink
    /// could take any without a note of it.
    fn save_first(&self) -> Result<(), SpoolError> {
        let mut saved = self.save_all();
        self.remove_done(0, u64::MAX)?;
        for is_last in [false, true] {
            let is_full = saved.as_ref().is_err_and(SpoolError::is_full);
            if !is_full {
                return saved;
            }
            let oldest = if is_last { self.take_oldest(0) } else { None };
            if let Some(oldest) = oldest {
                // What can't be written is written now.
                let _ = self.count_lost(&oldest);
            }
            saved = self.save_all();
        }
        match saved {
            Err(error) if error.is_full() => {
                log::warn!("{error:?}: windows are lost until there is room");
                Ok(())
            }
            saved => saved,
        }
    }

    fn save_all(&self) -> Result<(), SpoolError> {
        self.save_state().and_then(|()| self.save_rest())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Writes what is being collected. Who calls it is alone in that.
    fn save_state(&self) -> Result<(), SpoolError> {
        let collected = self.lock().collected.clone();
        self.folder.write_json(STATE, &collected)
    }

    /// Writes a sink's progress as it is by now. What can't be written is [tried again](Self::save_rest).
    fn save(&self, sink: &str) -> Result<(), SpoolError> {
        let Some(notes) = self.notes.get(sink) else {
            return Ok(());
        };
        let mut notes = locked(notes);
        let progress = self.progress_of(sink);
        let written = notes.write(&self.folder, &progress);
        let mut state = self.lock();
        match written {
            Ok(()) => state.note_saved(sink, progress),
            Err(_) => {
                state.unsaved.insert(sink.to_owned());
            }
        }
        written
    }

    /// Writes what couldn't be written before, or was to be written later.
    fn save_rest(&self) -> Result<(), SpoolError> {
        let sinks = self.lock().unsaved.clone();
        sinks.iter().try_for_each(|sink| self.save(sink))
    }

    fn progress_of(&self, sink: &str) -> Progress {
        let state = self.lock();
        let place = state.sinks.get(sink);
        place.map(|place| place.progress).unwrap_or_default()
    }

    /// Notes which open windows a killed collector loses: their starts, and of how many guests.
    ///
    /// # Errors
    /// It can't be written: windows that a killed collector loses won't be counted.
    pub fn note_open(&self, open: BTreeMap<u64, u64>) -> Result<(), SpoolError> {
        let _alone = locked(&self.writing);
        {
            let mut state = self.lock();
            if state.collected.open == open {
                return Ok(());
            }
            state.collected.open = open;
        }
        self.save_state()
    }

    /// Adds a batch, whose windows aren't open any more.
    ///
    /// # Errors
    /// As [`push_noting`](Self::push_noting).
    pub fn push(&self, batch: &Batch) -> Result<(), SpoolError> {
        let mut open = self.lock().collected.open.clone();
        open.remove(&batch.start);
        self.push_noting(batch, open)
    }

    /// Adds a batch, and notes at the same moment which windows are `open` from then on, as [`note_open`](Self::note_open) does. A collector that is
    /// killed in between has the former ones open: the guests whose windows the batch has lose their next ones.
    ///
    /// # Errors
    /// It can't be written, and counts as lost. Counts that can't be written either are written with a later batch, or at the end ([`Self::close`]).
    pub fn push_noting(&self, batch: &Batch, open: BTreeMap<u64, u64>) -> Result<(), SpoolError> {
        let _alone = locked(&self.writing);
        let mut entry = Entry::new(self.lock().collected.next, batch);
        let written = self.folder.write_batch(&entry, batch);
        entry.bytes = written.as_ref().copied().unwrap_or_default();
        {
            let mut state = self.lock();
            state.collected.next += 1;
            state.collected.open = open;
            state.insert(entry);
            if written.is_err() {
                // No sink ever sees it.
                state.lose(&entry);
            }
        }
        // Each is done whatever became of those before it.
        let lost = match &written {
            Ok(_) => Ok(()),
            Err(_) => self.count_lost(&entry),
        };
        let saved = self.save_state();
        let made = self.make_room();
        let rest = self.save_rest();
        self.changed.notify_all();
        written.map(drop).and(lost).and(saved).and(made).and(rest)
    }

    /// Removes the oldest batches until the others have room. Those that are being handed over stay.
    fn make_room(&self) -> Result<(), SpoolError> {
        while let Some(oldest) = self.take_oldest(self.limit) {
            self.count_lost(&oldest)?;
        }
        Ok(())
    }

    /// Takes out the oldest batch that isn't being handed over, if all of them have more than `limit` bytes. It is lost for those who don't have it.
    fn take_oldest(&self, limit: u64) -> Option<Entry> {
        let mut state = self.lock();
        let oldest = (state.bytes > limit).then(|| state.oldest_free())??;
        state.lose(&oldest);
        Some(oldest)
    }

    /// Removes the file of a batch that was lost. It is counted before it goes, and goes though the count can't be written now: it makes room for that.
    fn count_lost(&self, entry: &Entry) -> Result<(), SpoolError> {
        let saved = self.save_rest();
        self.folder.remove(&entry.name()).and(saved)
    }

    /// Removes those of the batches with the numbers from `first` to `last` that all sinks have. Without sinks they stay until there is no room.
    fn remove_done(&self, first: u64, last: u64) -> Result<(), SpoolError> {
        let done = self.lock().take_done(first, last);
        let removed = done.iter().map(|entry| self.folder.remove(&entry.name()));
        // Each is removed whatever became of those before it.
        removed.fold(Ok(()), Result::and)
    }

    /// Waits for the next batches for `sink`: so many that they are about `span` seconds, at least one; and for no more than
    /// there are when the spool is drained. Batches that were being handed over come again. `None`: the spool is closed, or it is drained and has
    /// none, or it wasn't opened for this sink.
    ///
    /// # Errors
    /// The position can't be written.
    pub fn claim(&self, sink: &str, span: u64) -> Result<Option<Claim>, SpoolError> {
        let mut state = self.lock();
        let attempt = loop {
            let Some(place) = state.sinks.get(sink) else {
                return Ok(None);
            };
            if state.end == End::Closed {
                return Ok(None);
            }
            if let Some(attempt) = place.progress.attempt {
                drop(state);
                break attempt;
            }
            if let Some(attempt) = state.enough(place.progress.next, span) {
                state.claim(sink, attempt);
                drop(state);
                self.save(sink)?;
                break attempt;
            }
            if state.end == End::Draining {
                return Ok(None);
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        };
        self.read(sink, attempt).map(Some)
    }

    fn read(&self, sink: &str, attempt: Attempt) -> Result<Claim, SpoolError> {
        // Nobody removes them while they are being handed over.
        let entries: Vec<Entry> = {
            let state = self.lock();
            let claimed = state.entries.range(attempt.first..=attempt.last);
            claimed.map(|(_, entry)| *entry).collect()
        };
        let mut batches = Vec::with_capacity(entries.len());
        for entry in &entries {
            match self.folder.read_batch(entry) {
                Ok(batch) => batches.push(batch),
                Err(error) => {
                    log::warn!("{error}: it is lost");
                    self.try_change(sink, |progress| progress.lost.add(entry))?;
                }
            }
        }
        Ok(Claim { attempt, batches })
    }

    /// Changes a sink's progress, unless the change can't be written: it is on the disk before anybody sees it.
    ///
    /// # Errors
    /// It can't be written, and nothing has changed.
    pub fn try_change(&self, sink: &str, change: impl Fn(&mut Progress)) -> Result<(), SpoolError> {
        let Some(notes) = self.notes.get(sink) else {
            return Ok(());
        };
        let mut notes = locked(notes);
        let mut next = self.progress_of(sink);
        change(&mut next);
        notes.write(&self.folder, &next)?;
        // What others have changed in the meantime stays.
        let mut state = self.lock();
        if let Some(place) = state.sinks.get_mut(sink) {
            change(&mut place.progress);
        }
        state.note_saved(sink, next);
        Ok(())
    }

    /// Changes a sink's progress, and writes it.
    ///
    /// # Errors
    /// It can't be written now: it has changed, and is written later.
    pub fn change(&self, sink: &str, change: impl FnOnce(&mut Progress)) -> Result<(), SpoolError> {
        self.change_later(sink, change);
        self.save(sink)
    }

    /// Changes a sink's progress. It is written with the next change, or the next batch.
    pub fn change_later(&self, sink: &str, change: impl FnOnce(&mut Progress)) {
        let mut state = self.lock();
        if let Some(place) = state.sinks.get_mut(sink) {
            change(&mut place.progress);
            state.unsaved.insert(sink.to_owned());
        }
    }

    /// The sink is through with what it has claimed, and what else has changed.
    ///
    /// # Errors
    /// It can't be written now, or what isn't needed any more can't be removed.
    pub fn finish(&self, sink: &str, change: impl FnOnce(&mut Progress)) -> Result<(), SpoolError> {
        self.change_later(sink, change);
        let attempt = self.lock().finish(sink);
        let Some(attempt) = attempt else {
            return self.save(sink);
        };
        let saved = self.save(sink);
        if saved.is_err() {
            // It makes room, in which that can be written.
            let progress = self.progress_of(sink);
            if let Some(place) = self.lock().sinks.get_mut(sink) {
                place.saved = progress;
            }
        }
        self.remove_done(attempt.first, attempt.last)?;
        saved.or_else(|_| self.save(sink))
    }

    /// The sink has ended by a fault of the program.
    pub fn note_failed(&self, sink: &str) {
        if let Some(place) = self.lock().sinks.get_mut(sink) {
            place.has_failed = true;
        }
    }

    /// No more batches will come, and the sinks end: what they haven't claimed stays for the next start.
    pub fn close(&self) {
        let _alone = locked(&self.writing);
        self.lock().end = End::Closed;
        let saved = self.save_state();
        if let Err(error) = saved.and(self.save_rest()) {
            log::error!("{error}: what was lost isn't known after the next start");
        }
        self.changed.notify_all();
    }

    /// No more batches will come, and the sinks end once they have taken all that is there, however few seconds it is.
    pub fn drain(&self) {
        self.lock().end = End::Draining;
        self.changed.notify_all();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().end == End::Closed
    }

    /// Waits for `time`. True if no more batches will come.
    pub fn wait_ended(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut state = self.lock();
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            if state.end != End::Open || rest.is_zero() {
                return state.end != End::Open;
            }
            let waited = self.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How full it is.
    pub fn fill(&self) -> Fill {
        let state = self.lock();
        Fill {
            batches: state.entries.len() as u64,
            bytes: state.bytes,
            killed: state.collected.killed,
        }
    }

    /// How far each sink has come, and how many batches wait for it.
    pub fn progress(&self) -> Vec<(String, Progress, u64)> {
        let state = self.lock();
        let sinks = state.sinks.iter();
        sinks
            .map(|(sink, place)| (sink.clone(), place.progress, place.waiting))
            .collect()
    }

    /// The sinks that have ended by a fault of the program.
    pub fn failed(&self) -> BTreeSet<String> {
        let state = self.lock();
        let failed = state.sinks.iter().filter(|(_, place)| place.has_failed);
        failed.map(|(sink, _)| sink.clone()).collect()
    }

    /// Reads all batches that are there, the oldest first.
    ///
    /// # Errors
    /// One can't be read.
    pub fn read_all(&self) -> Result<Vec<Batch>, SpoolError> {
        let entries: Vec<Entry> = self.lock().entries.values().copied().collect();
        let batches = entries.iter().map(|entry| self.folder.read_batch(entry));
        batches.collect()
    }
}
