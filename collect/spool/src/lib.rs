//! A folder in which batches wait for the sinks.
//!
//! Each batch is a file. The position of each sink is in a file, too. A batch is removed when all sinks have received it. If there is no
//! room, the oldest batch is removed, and counts as lost for each sink that hasn't received it.
//!
//! No thread waits for the disk while it has locked the state. The locks are taken in this order: `writing`, a sink's `notes`, `state`.

pub mod batch;
mod delivery;
mod error;
mod files;
mod notes;
mod progress;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
pub use delivery::Claim;
pub use error::SpoolError;
pub use files::Entry;
use files::Folder;
pub use notes::read_progress;
use notes::{Notes, OpenedNotes};
pub use progress::{Attempt, Counts, Progress};
use state::{End, State};

/// The file that has a [`OpenWindows`].
const STATE: &str = "state.json";

/// The open windows, by which a later collector counts those that a killed one has lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct OpenWindows {
    /// The number of the next batch.
    next: u64,
    /// The number of guests with an open window, by the window's start in s since 1970.
    open: BTreeMap<u64, u64>,
    /// Number of windows that were open when a collector was killed.
    killed: u64,
    /// Number of damaged files that were set aside.
    damaged: u64,
}

/// The contents of the spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Number of batches.
    pub batches: u64,
    /// Bytes of the batches' files.
    pub bytes: u64,
    /// Number of windows that were open when a collector was killed.
    pub killed: u64,
    /// Number of damaged files that were set aside.
    pub damaged: u64,
}

/// The spool. Threads share it.
#[derive(Debug)]
pub struct Spool {
    folder: Folder,
    limit: u64,
    /// Held while a batch or the file [`STATE`] is written.
    writing: Mutex<()>,
    notes: BTreeMap<String, Mutex<Notes>>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Locks `mutex`, even if a thread has panicked with it: no change is left half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spool {
    /// Opens the spool in the folder at `path` for these `sinks`. Its batches may take up to `limit` bytes. Damaged files are set aside: if a sink's
    /// notes are damaged, it is unknown which of the batches it has received, so that none of them is sent to it (again).
    ///
    /// # Errors
    /// [`SpoolError`].
    pub fn open(path: &Path, limit: u64, sinks: &[&str]) -> Result<Self, SpoolError> {
        let folder = Folder::open(path)?;
        let mut state = State::default();
        for entry in folder.batches()? {
            state.insert(entry);
        }
        let mut collected = match folder.read_json::<OpenWindows>(STATE) {
            Err(error) if error.is_damage() => {
                folder.set_aside(STATE, &error)?;
                OpenWindows {
                    damaged: 1,
                    ..OpenWindows::default()
                }
            }
            read => read?.unwrap_or_default(),
        };
        let last = state.entries.last_key_value();
        let after = last.map_or(0, |(number, _)| number + 1);
        collected.next = after.max(collected.next);
        let mut notes = BTreeMap::new();
        for sink in sinks {
            let (notes_of_sink, found) = Notes::open(&folder, sink)?;
            if found != OpenedNotes::File {
                // It is written later: on a full disk there is no room for another file.
                state.unsaved.insert((*sink).to_owned());
            }
            let mut progress = notes_of_sink.last();
            if found == OpenedNotes::Damaged {
                collected.damaged += 1;
                progress.next = after;
                let entries = state.entries.values();
                entries.for_each(|entry| progress.unsure.add(entry));
            }
            // The sink's file may be newer than the state. No number is given twice.
            collected.next = collected.next.max(progress.next);
            state.add_sink(sink, progress);
            notes.insert((*sink).to_owned(), Mutex::new(notes_of_sink));
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

    /// Writes the state and the positions at the start, and removes batches that all sinks have received. If the disk is full even then, the oldest batch is
    /// removed: without room for its notes, no sink could receive any.
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
                // If the count can't be written, it is written below.
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

    /// Writes the file [`STATE`]. The caller holds `writing`, or is the only one to use the spool.
    fn save_state(&self) -> Result<(), SpoolError> {
        let collected = self.lock().collected.clone();
        self.folder.write_json(STATE, &collected)
    }

    /// Writes a sink's present progress. If it can't be written, [`save_rest`](Self::save_rest) tries again.
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

    /// Writes the progress of sinks that couldn't be written before, or that was to be written later.
    fn save_rest(&self) -> Result<(), SpoolError> {
        let sinks = self.lock().unsaved.clone();
        sinks.iter().try_for_each(|sink| self.save(sink))
    }

    fn progress_of(&self, sink: &str) -> Progress {
        let state = self.lock();
        let position = state.sinks.get(sink);
        position
            .map(|position| position.progress)
            .unwrap_or_default()
    }

    /// Notes the windows that are lost if the collector is killed: the number of guests, by the window's start in s since 1970.
    ///
    /// # Errors
    /// It can't be written. Then windows that a killed collector loses aren't counted.
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

    /// Adds a batch, whose windows aren't open from then on.
    ///
    /// # Errors
    /// As [`push_noting`](Self::push_noting).
    pub fn push(&self, batch: &Batch) -> Result<(), SpoolError> {
        let mut open = self.lock().collected.open.clone();
        open.remove(&batch.start);
        self.push_noting(batch, open)
    }

    /// Adds a batch, and notes which windows are `open` from then on, as [`note_open`](Self::note_open) does. If the collector is killed between the two,
    /// the former windows count as open: the guests whose windows are in the batch lose their next ones.
    ///
    /// # Errors
    /// The batch can't be written, and counts as lost. If the counts can't be written either, they are written with a later batch, or by [`Self::close`].
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
                // No sink receives it.
                state.lose(&entry);
            }
        }
        // Each step is done even if one before it has failed.
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

    /// Removes the oldest batches until the others fit into the limit. Batches that are being delivered stay.
    fn make_room(&self) -> Result<(), SpoolError> {
        while let Some(oldest) = self.take_oldest(self.limit) {
            self.count_lost(&oldest)?;
        }
        Ok(())
    }

    /// Takes out the oldest batch that isn't being delivered, if all batches together have more than `limit` bytes. It is lost for the sinks that haven't received it.
    fn take_oldest(&self, limit: u64) -> Option<Entry> {
        let mut state = self.lock();
        let oldest = (state.bytes > limit).then(|| state.oldest_free())??;
        state.lose(&oldest);
        Some(oldest)
    }

    /// Removes the file of a lost batch, after its count was written. If that fails, the file is removed nevertheless, which makes room for the count.
    fn count_lost(&self, entry: &Entry) -> Result<(), SpoolError> {
        let saved = self.save_rest();
        self.folder.remove(&entry.name()).and(saved)
    }

    /// Removes those of the batches with the numbers from `first` to `last` that all sinks have received. Without sinks they stay until there is no room.
    fn remove_done(&self, first: u64, last: u64) -> Result<(), SpoolError> {
        let done = self.lock().take_done(first, last);
        let removed = done.iter().map(|entry| self.folder.remove(&entry.name()));
        // Each is removed even if one before it couldn't be.
        removed.fold(Ok(()), Result::and)
    }

    /// Closes the spool: no more batches will come, and the sinks end. Batches that they haven't claimed stay for the next start.
    pub fn close(&self) {
        let _alone = locked(&self.writing);
        self.lock().end = End::Closed;
        let saved = self.save_state();
        if let Err(error) = saved.and(self.save_rest()) {
            log::error!("{error}: what was lost isn't known after the next start");
        }
        self.changed.notify_all();
    }

    /// Drains the spool: no more batches will come, and the sinks end once they have received all batches that there are, whatever time these cover.
    pub fn drain(&self) {
        self.lock().end = End::Draining;
        self.changed.notify_all();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().end == End::Closed
    }

    /// Waits for `time`, or until no more batches will come. True in the second case.
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

    /// The present contents.
    pub fn fill(&self) -> Fill {
        let state = self.lock();
        Fill {
            batches: state.entries.len() as u64,
            bytes: state.bytes,
            killed: state.collected.killed,
            damaged: state.collected.damaged,
        }
    }

    /// The progress of each sink, and the number of batches that wait for it.
    pub fn progress(&self) -> Vec<(String, Progress, u64)> {
        let state = self.lock();
        let sinks = state.sinks.iter();
        sinks
            .map(|(sink, position)| (sink.clone(), position.progress, position.waiting))
            .collect()
    }

    /// The sinks that have ended by a fault of the program.
    pub fn failed(&self) -> BTreeSet<String> {
        let state = self.lock();
        let failed = state
            .sinks
            .iter()
            .filter(|(_, position)| position.has_failed);
        failed.map(|(sink, _)| sink.clone()).collect()
    }

    /// Reads all batches, the oldest first.
    ///
    /// # Errors
    /// A batch can't be read.
    pub fn read_all(&self) -> Result<Vec<Batch>, SpoolError> {
        let entries: Vec<Entry> = self.lock().entries.values().copied().collect();
        let batches = entries.iter().map(|entry| self.folder.read_batch(entry));
        batches.collect()
    }
}
