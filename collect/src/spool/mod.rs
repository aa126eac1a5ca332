//! What was collected and waits for the sinks, in a folder.
//!
//! Each batch is a file. A sink has a position, which is in a file, too; a batch is removed when all sinks have it, or when there is no
//! room: then the oldest goes, and counts as lost for each sink that doesn't have it.

mod error;
mod files;
mod progress;
mod state;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::batch::Batch;
pub use error::SpoolError;
pub use files::Entry;
use files::Folder;
pub use progress::{Attempt, Counts, Progress};
use state::{End, State, enough, oldest_free};

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
    state: Mutex<State>,
    changed: Condvar,
}

fn progress_file(sink: &str) -> String {
    format!("sink-{sink}.json")
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
            state.bytes += entry.bytes;
            state.entries.insert(entry.number, entry);
        }
        let mut collected: Collected = folder.read_json(STATE)?.unwrap_or_default();
        let last = state.entries.last_key_value();
        let after = last.map_or(0, |(number, _)| number + 1);
        collected.next = after.max(collected.next);
        for sink in sinks {
            let found: Option<Progress> = folder.read_json(&progress_file(sink))?;
            if found.is_none() {
                // On a full disk it can only take an older one's place.
                state.unsaved.insert((*sink).to_owned());
            }
            let progress = found.unwrap_or_default();
            // The sink's file was written, and the state wasn't: a number is given once.
            collected.next = collected.next.max(progress.next);
            state.sinks.insert((*sink).to_owned(), progress);
        }
        state.collected = collected;
        let open = std::mem::take(&mut state.collected.open);
        state.collected.killed += open.values().sum::<u64>();
        let spool = Self {
            folder,
            limit,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        let mut state = spool.lock();
        spool.save_first(&mut state)?;
        drop(state);
        Ok(spool)
    }

    /// Writes what is known at the start, and removes what all sinks have. On a full disk the oldest batch goes, if nothing else does: no sink
    /// could take any without a note of it.
    fn save_first(&self, state: &mut State) -> Result<(), SpoolError> {
        let mut saved = self.save_all(state);
        self.remove_done(state)?;
        for is_last in [false, true] {
            let is_full = saved.as_ref().is_err_and(SpoolError::is_full);
            if !is_full {
                return saved;
            }
            if let (true, Some(oldest)) = (is_last, oldest_free(state)) {
                // What can't be written is written now.
                let _ = self.lose(state, oldest);
            }
            saved = self.save_all(state);
        }
        match saved {
            Err(error) if error.is_full() => {
                log::warn!("{error:?}: windows are lost until there is room");
                Ok(())
            }
            saved => saved,
        }
    }

    fn save_all(&self, state: &mut State) -> Result<(), SpoolError> {
        self.save_state(state).and_then(|()| self.save_rest(state))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save_state(&self, state: &State) -> Result<(), SpoolError> {
        self.folder.write_json(STATE, &state.collected)
    }

    /// Writes a sink's progress. What can't be written is [tried again](Self::save_rest).
    fn save(&self, state: &mut State, sink: &str) -> Result<(), SpoolError> {
        let progress = state.sinks.get(sink).copied().unwrap_or_default();
        let written = self.folder.write_json(&progress_file(sink), &progress);
        match written {
            Ok(()) => state.unsaved.remove(sink),
            Err(_) => state.unsaved.insert(sink.to_owned()),
        };
        written
    }

    /// Writes what couldn't be written before.
    fn save_rest(&self, state: &mut State) -> Result<(), SpoolError> {
        let sinks = state.unsaved.clone();
        sinks.iter().try_for_each(|sink| self.save(state, sink))
    }

    /// Notes which open windows a killed collector loses: their starts, and of how many guests.
    ///
    /// # Errors
    /// It can't be written: windows that a killed collector loses won't be counted.
    pub fn note_open(&self, open: BTreeMap<u64, u64>) -> Result<(), SpoolError> {
        let mut state = self.lock();
        if state.collected.open == open {
            return Ok(());
        }
        state.collected.open = open;
        self.save_state(&state)
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
        let mut state = self.lock();
        let mut entry = Entry::new(state.collected.next, batch);
        let written = self.folder.write_batch(&entry, batch);
        entry.bytes = written.as_ref().copied().unwrap_or_default();
        state.collected.next += 1;
        state.collected.open = open;
        state.bytes += entry.bytes;
        state.entries.insert(entry.number, entry);
        // Each is done whatever became of those before it.
        let lost = match &written {
            Ok(_) => Ok(()),
            Err(_) => self.lose(&mut state, entry),
        };
        let saved = self.save_state(&state);
        let made = self.make_room(&mut state);
        let rest = self.save_rest(&mut state);
        self.changed.notify_all();
        written.map(drop).and(lost).and(saved).and(made).and(rest)
    }

    /// Removes the oldest batches until the others have room. Those that are being handed over stay.
    fn make_room(&self, state: &mut State) -> Result<(), SpoolError> {
        while state.bytes > self.limit {
            let Some(oldest) = oldest_free(state) else {
                break;
            };
            self.lose(state, oldest)?;
        }
        Ok(())
    }

    /// Removes a batch, which is lost for those who don't have it. It is counted before it goes, and goes though the count can't be written now: it
    /// makes room for that.
    fn lose(&self, state: &mut State, entry: Entry) -> Result<(), SpoolError> {
        let sinks: Vec<String> = state.sinks.keys().cloned().collect();
        let mut saved = Ok(());
        for sink in sinks {
            let progress = state.sinks.entry(sink.clone()).or_default();
            if progress.next <= entry.number {
                progress.lost.add(&entry);
                // Those before it that the sink hasn't claimed stay its next ones: this one may be the newest, or others' may be in flight.
                let mut before = state.entries.range(progress.next..entry.number);
                if before.next().is_none() {
                    progress.next = entry.number + 1;
                }
                saved = saved.and(self.save(state, &sink));
            }
        }
        self.forget(state, entry).and(saved)
    }

    fn forget(&self, state: &mut State, entry: Entry) -> Result<(), SpoolError> {
        state.entries.remove(&entry.number);
        state.bytes = state.bytes.saturating_sub(entry.bytes);
        self.folder.remove(&entry.name())
    }

    /// Removes what all sinks have. Without sinks it stays until there is no room.
    fn remove_done(&self, state: &mut State) -> Result<(), SpoolError> {
        if state.sinks.is_empty() {
            return Ok(());
        }
        let is_done = |entry: &&Entry| {
            let mut sinks = state.sinks.values();
            !sinks.any(|progress| progress.needs(entry.number))
        };
        // All sinks need those after that.
        let claimed = state.sinks.values().map(|progress| progress.next).min();
        let claimed = state.entries.range(..claimed.unwrap_or_default());
        let done = claimed.map(|(_, entry)| entry).filter(is_done).copied();
        let done: Vec<Entry> = done.collect();
        for entry in done {
            self.forget(state, entry)?;
        }
        Ok(())
    }

    /// Waits for the next batches for `sink`: so many that they are about `span` seconds, at least one; and for no more than
    /// there are when the spool is drained. Batches that were being handed over come again. `None`: the spool is closed, or it is drained and has
    /// none.
    ///
    /// # Errors
    /// The position can't be written.
    pub fn claim(&self, sink: &str, span: u64) -> Result<Option<Claim>, SpoolError> {
        let mut state = self.lock();
        loop {
            if state.end == End::Closed {
                return Ok(None);
            }
            let progress = state.sinks.entry(sink.to_owned()).or_default();
            if let Some(attempt) = progress.attempt {
                return self.read(state, sink, attempt).map(Some);
            }
            let next = progress.next;
            if let Some(attempt) = enough(&state, next, span) {
                let progress = state.sinks.entry(sink.to_owned()).or_default();
                progress.attempt = Some(attempt);
                progress.next = attempt.last + 1;
                self.save(&mut state, sink)?;
                return self.read(state, sink, attempt).map(Some);
            }
            if state.end == End::Draining {
                return Ok(None);
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read(
        &self,
        state: MutexGuard<'_, State>,
        sink: &str,
        attempt: Attempt,
    ) -> Result<Claim, SpoolError> {
        let claimed = state.entries.range(attempt.first..=attempt.last);
        let entries: Vec<Entry> = claimed.map(|(_, entry)| *entry).collect();
        // Nobody removes them while they are being handed over.
        drop(state);
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

    /// Changes a sink's progress, unless the change can't be written.
    ///
    /// # Errors
    /// It can't be written, and nothing has changed.
    pub fn try_change(
        &self,
        sink: &str,
        change: impl FnOnce(&mut Progress),
    ) -> Result<(), SpoolError> {
        let mut state = self.lock();
        let progress = state.sinks.entry(sink.to_owned()).or_default();
        let before = *progress;
        change(progress);
        self.save(&mut state, sink).inspect_err(|_| {
            state.sinks.insert(sink.to_owned(), before);
        })
    }

    /// Changes a sink's progress, and writes it.
    ///
    /// # Errors
    /// It can't be written now: it has changed, and is written later.
    pub fn change(&self, sink: &str, change: impl FnOnce(&mut Progress)) -> Result<(), SpoolError> {
        let mut state = self.lock();
        change(state.sinks.entry(sink.to_owned()).or_default());
        self.save(&mut state, sink)
    }

    /// Changes a sink's progress. It is written with the next change, or the next batch.
    pub fn change_later(&self, sink: &str, change: impl FnOnce(&mut Progress)) {
        let mut state = self.lock();
        change(state.sinks.entry(sink.to_owned()).or_default());
        state.unsaved.insert(sink.to_owned());
    }

    /// The sink is through with what it has claimed, and what else has changed.
    ///
    /// # Errors
    /// It can't be written now, or what isn't needed any more can't be removed.
    pub fn finish(&self, sink: &str, change: impl FnOnce(&mut Progress)) -> Result<(), SpoolError> {
        let mut state = self.lock();
        let progress = state.sinks.entry(sink.to_owned()).or_default();
        change(progress);
        progress.attempt = None;
        let saved = self.save(&mut state, sink);
        // Whatever became of that: it makes room.
        self.remove_done(&mut state)?;
        saved.or_else(|_| self.save(&mut state, sink))
    }

    /// No more batches will come, and the sinks end: what they haven't claimed stays for the next start.
    pub fn close(&self) {
        let mut state = self.lock();
        state.end = End::Closed;
        let saved = self.save_state(&state);
        if let Err(error) = saved.and(self.save_rest(&mut state)) {
            log::error!("{error}: what was lost isn't known after the next start");
        }
        drop(state);
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
        let waiting = |progress: &Progress| {
            let entries = state.entries.keys();
            entries.filter(|number| progress.needs(**number)).count() as u64
        };
        let sinks = state.sinks.iter();
        sinks
            .map(|(sink, progress)| (sink.clone(), *progress, waiting(progress)))
            .collect()
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
