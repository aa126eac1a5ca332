//! What a sink does with the spool: it claims batches, and notes what became of them.

use std::sync::PoisonError;

use crate::batch::Batch;
use crate::state::End;
use crate::{Attempt, Entry, Progress, Spool, SpoolError, locked};

/// Batches for a sink.
#[derive(Debug)]
pub struct Claim {
    /// The numbers of the batches.
    pub attempt: Attempt,
    /// The batches. Those whose files can't be read are left out, and count as lost.
    pub batches: Vec<Batch>,
}

impl Spool {
    /// Waits for the next batches for `sink`, at least one, which together cover about `span` seconds. If the spool is being drained, it doesn't wait
    /// for more than there are. Batches whose delivery hasn't ended are returned again. `None`: the spool is closed, or it is being drained and has
    /// no more batches, or it wasn't opened for this sink.
    ///
    /// # Errors
    /// The position can't be written.
    pub fn claim(&self, sink: &str, span: u64) -> Result<Option<Claim>, SpoolError> {
        let mut state = self.lock();
        let attempt = loop {
            let Some(position) = state.sinks.get(sink) else {
                return Ok(None);
            };
            if state.end == End::Closed {
                return Ok(None);
            }
            if let Some(attempt) = position.progress.attempt {
                drop(state);
                break attempt;
            }
            if let Some(attempt) = state.enough(position.progress.next, span) {
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
        // They aren't removed while they are being delivered.
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

    /// Changes a sink's progress, unless the change can't be written: it is on the disk before it is visible.
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
        // Changes that others have made meanwhile stay.
        let mut state = self.lock();
        if let Some(position) = state.sinks.get_mut(sink) {
            change(&mut position.progress);
        }
        state.note_saved(sink, next);
        Ok(())
    }

    /// Changes a sink's progress, and writes it.
    ///
    /// # Errors
    /// The change is made, but can't be written now. It is written later.
    pub fn change(&self, sink: &str, change: impl FnOnce(&mut Progress)) -> Result<(), SpoolError> {
        self.change_later(sink, change);
        self.save(sink)
    }

    /// Changes a sink's progress, which is written with the next change or the next batch.
    pub fn change_later(&self, sink: &str, change: impl FnOnce(&mut Progress)) {
        let mut state = self.lock();
        if let Some(position) = state.sinks.get_mut(sink) {
            change(&mut position.progress);
            state.unsaved.insert(sink.to_owned());
        }
    }

    /// Ends the delivery of the batches that the sink has claimed, and changes its progress.
    ///
    /// # Errors
    /// The progress can't be written now, or batches that aren't needed any more can't be removed.
    pub fn finish(&self, sink: &str, change: impl FnOnce(&mut Progress)) -> Result<(), SpoolError> {
        self.change_later(sink, change);
        let attempt = self.lock().finish(sink);
        let Some(attempt) = attempt else {
            return self.save(sink);
        };
        let saved = self.save(sink);
        if saved.is_err() {
            // Batches are removed all the same, which makes room for the note.
            let progress = self.progress_of(sink);
            if let Some(position) = self.lock().sinks.get_mut(sink) {
                position.saved = progress;
            }
        }
        self.remove_done(attempt.first, attempt.last)?;
        saved.or_else(|_| self.save(sink))
    }

    /// Notes that the sink has ended by a fault of the program.
    pub fn note_failed(&self, sink: &str) {
        if let Some(position) = self.lock().sinks.get_mut(sink) {
            position.has_failed = true;
        }
    }
}
