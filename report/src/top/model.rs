//! The sliding window: what has arrived lately.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kvmprof_devices::profiling::Ticks;

use super::slot::Slot;
use super::snapshot::Snapshot;
use super::stream::{Piece, StreamError, StreamReader};
use crate::file::{Facts, ProcessMappings, decode_samples};
use crate::symbolize::Tables;

/// The window slides by that part of its length.
const SLOTS: u32 = 20;

/// Bytes of symbols and functions that are kept at most.
const MAX_NAMES: usize = 256 << 20;
/// Mappings that are kept at most, of all processes that there ever were.
const MAX_MAPPINGS: usize = 1 << 18;

/// How much more is kept: guests make up what they like, and the live view goes on for days.
#[derive(Debug, Default)]
struct Room {
    names: usize,
    mappings: usize,
}

impl Room {
    /// Whether there is room for `bytes` more of names.
    fn take(&mut self, bytes: usize) -> bool {
        let names = self.names.saturating_add(bytes);
        let has_room = names <= MAX_NAMES;
        if has_room {
            self.names = names;
        }
        has_room
    }

    /// Whether there is room for `count` more mappings; otherwise those before are to be forgotten.
    fn take_mappings(&mut self, count: usize) -> bool {
        let mappings = self.mappings.saturating_add(count);
        let has_room = mappings <= MAX_MAPPINGS;
        self.mappings = if has_room { mappings } else { count };
        has_room
    }
}

/// The window, fed by a recorder's stream. Time is given to it, from any moment on that stays the same.
#[derive(Debug)]
pub struct Model {
    window: Duration,
    reader: StreamReader,
    facts: Facts,
    names: Arc<Tables>,
    room: Room,
    slots: VecDeque<Slot>,
    /// When the last samples arrived.
    last: Duration,
    has_ended: bool,
}

impl Model {
    /// A window of that length, at whose beginning it is `now`.
    pub fn new(window: Duration, now: Duration) -> Self {
        Self {
            window,
            reader: StreamReader::default(),
            facts: Facts::default(),
            names: Arc::default(),
            room: Room::default(),
            slots: VecDeque::new(),
            last: now,
            has_ended: false,
        }
    }

    /// Takes bytes of the stream that have arrived `now`.
    ///
    /// # Errors
    /// It is no recording of a known format, or damaged.
    pub fn feed(&mut self, bytes: &[u8], now: Duration) -> Result<(), StreamError> {
        let mut pieces = Vec::new();
        let result = self.reader.push(bytes, |piece| pieces.push(piece));
        for piece in pieces {
            match piece {
                Piece::Facts(facts) => self.facts = facts,
                Piece::Symbols(text) if self.room.take(text.len()) => {
                    self.names().add_symbols(&text)
                }
                Piece::Binary(binary) if self.room.take(binary.functions.len()) => {
                    self.names().add_file(binary);
                }
                Piece::Symbols(_) | Piece::Binary(_) => {}
                Piece::Mappings(mappings) => self.add_mappings(&mappings),
                Piece::Samples(block) => self.add(&block, now)?,
                Piece::End(_) => self.has_ended = true,
            }
        }
        self.advance(now);
        result
    }

    /// What names come from. Snapshots keep what they had.
    fn names(&mut self) -> &mut Tables {
        Arc::make_mut(&mut self.names)
    }

    fn add_mappings(&mut self, mappings: &ProcessMappings) {
        let has_room = self.room.take_mappings(mappings.mappings.len());
        let spaces = &mut self.names().spaces;
        if !has_room {
            spaces.forget();
        }
        spaces.add(mappings);
    }

    fn add(&mut self, block: &[u8], now: Duration) -> Result<(), StreamError> {
        let is_new = self
            .slots
            .back()
            .is_none_or(|slot| slot.end.saturating_sub(slot.begin) >= self.window / SLOTS);
        if is_new {
            self.slots.push_back(Slot::new(self.last));
        }
        let Some(slot) = self.slots.back_mut() else {
            return Ok(());
        };
        slot.end = now;
        self.last = now;
        let spaces = &self.names.spaces;
        let add = |ticks: &Ticks, frames: &[u64]| {
            let mappings = ticks
                .sample
                .map(|sample| spaces.at(sample.address_space, sample.pid, sample.time));
            slot.add(ticks, frames, mappings.unwrap_or_default());
        };
        decode_samples(block, add).ok_or(StreamError::Damaged("its samples make no sense"))
    }

    /// Lets go what is older than the window.
    pub fn advance(&mut self, now: Duration) {
        let begin = now.saturating_sub(self.window);
        while self.slots.front().is_some_and(|slot| slot.end < begin) {
            self.slots.pop_front();
        }
    }

    /// True when the recorder has said that nothing more follows.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// What the window shows.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.facts, &self.names, self.slots.iter(), self.has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{process, stream};
    use super::*;
    use crate::file::{Block, Kind};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_older_than_the_window_is_let_go() {
        let mut model = Model::new(10 * SECOND, Duration::ZERO);
        let mut stream = stream();
        model.feed(&stream.begin(), Duration::ZERO).unwrap();
        for second in 1..=30 {
            let block = stream.samples(&[process(second, &[0x1000]), process(7, &[0x1000])]);
            model
                .feed(&block, SECOND * u32::try_from(second).unwrap())
                .unwrap();
        }
        let snapshot = model.snapshot();
        let mut pids: Vec<i32> = snapshot.processes.iter().map(|row| row.pid).collect();
        pids.sort_unstable();
        let expected: Vec<i32> = [7].into_iter().chain(20..=30).collect();
        assert_eq!(pids, expected);
        assert_eq!(snapshot.ticks(), 22);
        assert_eq!(snapshot.span, 11 * SECOND);
        assert!(model.slots.len() <= 21);
        model.advance(41 * SECOND);
        assert_eq!(model.snapshot().ticks(), 0);
    }

    #[test]
    fn many_small_blocks_take_few_slots() {
        let mut model = Model::new(SECOND, Duration::ZERO);
        let mut stream = stream();
        model.feed(&stream.begin(), Duration::ZERO).unwrap();
        for number in 0..3000 {
            let block = stream.samples(&[process(1, &[0x1000])]);
            model.feed(&block, SECOND * number / 1000).unwrap();
            assert!(model.slots.len() <= 22, "{}", model.slots.len());
        }
        assert!(!model.has_ended());
        model.feed(&stream.end(), 3 * SECOND).unwrap();
        assert!(model.has_ended());
    }

    #[test]
    fn symbols_add_up() {
        let mut model = Model::new(SECOND, Duration::ZERO);
        model.feed(&stream().begin(), Duration::ZERO).unwrap();
        let before = model.names.kernel.len();
        let module = Block::encode(Kind::Symbols, b"900000 t poll\t[net]\n").unwrap();
        model.feed(&module, Duration::ZERO).unwrap();
        assert_eq!(model.names.kernel.len(), before + 1);
    }

    #[test]
    fn nonsense_ends_it_with_an_error() {
        let mut model = Model::new(SECOND, Duration::ZERO);
        assert!(model.feed(&[1; 100], SECOND).is_err());
    }
}
