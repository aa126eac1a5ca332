//! The sliding window of recent ticks.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use super::snapshot::Snapshot;
use crate::model::{Limits, Sums};
use crate::symbolize::Resolver;
use kvmprof_recording::file::{
    Block, Budget, Kind, Piece, ReadError, Reader, RecordingInfo, Samples,
};

/// The window slides by this fraction of its length.
const SLOTS: u32 = 20;

/// The limits of each part of the window.
const LIMITS: Limits = Limits {
    processes: 2048,
    // The view has no table of them.
    threads: 0,
    stacks: 4096,
    frames: 32_768,
};
/// Maximum number of resolved names that are kept from one snapshot to the next.
const MAX_FOUND: usize = 1 << 16;

/// The ticks that arrived in a part of the window.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Its start, in the time of [`Model`].
    pub begin: Duration,
    /// The arrival of its last ticks.
    pub end: Duration,
    /// Its ticks.
    pub sums: Sums,
}

/// The window on a recorder's stream. The caller passes the time, relative to any fixed moment.
#[derive(Debug)]
pub struct Model {
    window: Duration,
    by: Option<String>,
    reader: Reader,
    budget: Budget,
    info: RecordingInfo,
    resolver: Rc<Resolver>,
    slots: VecDeque<Slot>,
    /// The arrival of the last samples.
    last: Duration,
    has_ended: bool,
}

impl Model {
    /// An empty window of length `window` that begins `now`.
    pub fn new(window: Duration, now: Duration) -> Self {
        Self {
            window,
            by: None,
            reader: Reader::default(),
            budget: Budget::default(),
            info: RecordingInfo::default(),
            resolver: Rc::default(),
            slots: VecDeque::new(),
            last: now,
            has_ended: false,
        }
    }

    /// The same window, whose snapshots also have the values of the label with the key `by`.
    #[must_use]
    pub fn with_label(self, by: Option<String>) -> Self {
        Self { by, ..self }
    }

    /// The same window, whose snapshots also have the frames of interpreters if `native`.
    #[must_use]
    pub fn with_native(mut self, native: bool) -> Self {
        self.resolver = Rc::new(Resolver::default().with_native(native));
        self
    }

    /// Takes bytes of the stream that have arrived `now`.
    ///
    /// # Errors
    /// The stream isn't a recording of a known format, or is damaged.
    pub fn feed(&mut self, bytes: &[u8], now: Duration) -> Result<(), ReadError> {
        self.reader.push(bytes);
        while let Some(block) = self.reader.next_block()? {
            self.take(block, now)?;
        }
        self.advance(now);
        Ok(())
    }

    fn take(&mut self, block: Block, now: Duration) -> Result<(), ReadError> {
        if !self.budget.take(&block) {
            if block.kind != Some(Kind::Mappings) {
                return Ok(());
            }
            // The live view may run for days: remove the mappings of processes that have ended.
            self.names().forget_mappings();
            self.budget.give_mappings_back();
            self.budget.take(&block);
        }
        match block.piece()? {
            Some(Piece::Info(info)) => self.info = info,
            Some(Piece::Samples(samples)) => self.add(&samples, now)?,
            Some(Piece::End(_)) => self.has_ended = true,
            Some(names) => self.names().add_piece(names),
            None => {}
        }
        Ok(())
    }

    /// The names for new frames. Snapshots keep their own.
    fn names(&mut self) -> &mut Resolver {
        Rc::make_mut(&mut self.resolver)
    }

    fn add(&mut self, samples: &Samples, now: Duration) -> Result<(), ReadError> {
        let is_new = self
            .slots
            .back()
            .is_none_or(|slot| slot.end.saturating_sub(slot.begin) >= self.window / SLOTS);
        if is_new {
            self.slots.push_back(Slot {
                begin: self.last,
                end: self.last,
                sums: Sums::new(LIMITS),
            });
        }
        let Some(slot) = self.slots.back_mut() else {
            return Ok(());
        };
        slot.end = now;
        self.last = now;
        let resolver = &self.resolver;
        samples.read(|ticks, frames| {
            let state = ticks.sample.map(|sample| resolver.state_of(&sample).state);
            slot.sums.add(ticks, frames, state.unwrap_or_default());
        })
    }

    /// Removes ticks that are older than the window.
    pub fn advance(&mut self, now: Duration) {
        let begin = now.saturating_sub(self.window);
        while self.slots.front().is_some_and(|slot| slot.end < begin) {
            self.slots.pop_front();
        }
    }

    /// True after the end of the recorder's stream.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The present contents of the window.
    pub fn snapshot(&self) -> Snapshot {
        self.resolver.forget_beyond(MAX_FOUND);
        Snapshot::new(
            &self.info,
            &self.resolver,
            self.slots.iter(),
            self.by.as_deref(),
            self.has_ended,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Stream, process, stream};
    use super::*;
    use std::collections::BTreeSet;

    use crate::top::Target;
    use kvmprof_recording::file::{BinaryFunction, BinaryInfo, Mapping, ProcessMappings, Segment};

    const SECOND: Duration = Duration::from_secs(1);

    /// A model with the begin of a stream.
    fn begun(window: Duration) -> (Model, Stream) {
        let (mut model, stream) = (Model::new(window, Duration::ZERO), stream());
        model.feed(&stream.begin(), Duration::ZERO).unwrap();
        (model, stream)
    }

    #[test]
    fn ticks_older_than_the_window_are_dropped() {
        let (mut model, mut stream) = begun(10 * SECOND);
        for second in 1..=30 {
            let block = stream.samples(&[process(second, &[0x1000]), process(7, &[0x1000])]);
            model.feed(&block, SECOND * second.unsigned_abs()).unwrap();
        }
        let snapshot = model.snapshot();
        let pids: BTreeSet<i32> = snapshot.processes.iter().map(|row| row.pid).collect();
        assert_eq!(pids, [7].into_iter().chain(20..=30).collect());
        assert_eq!(snapshot.ticks(), 22);
        assert_eq!(snapshot.span, 11 * SECOND);
        assert!(model.slots.len() <= 21);
        model.advance(41 * SECOND);
        assert_eq!(model.snapshot().ticks(), 0);
    }

    #[test]
    fn many_small_blocks_take_few_slots() {
        let (mut model, mut stream) = begun(SECOND);
        for number in 0..3000 {
            let block = stream.samples(&[process(1, &[0x1000])]);
            model.feed(&block, SECOND * number / 1000).unwrap();
            assert!(model.slots.len() <= 22, "{}", model.slots.len());
        }
        assert!(!model.has_ended());
        model.feed(&stream.end(), 3 * SECOND).unwrap();
        assert!(model.has_ended());
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        let mut names: Vec<&str> = (snapshot.functions.iter())
            .map(|row| &*row.function.name)
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn names_are_found_as_soon_as_they_are_known() {
        let (mut model, mut stream) = begun(SECOND);
        let block = stream.samples(&[process(1, &[0x90_0010])]);
        model.feed(&block, Duration::ZERO).unwrap();
        let before = model.snapshot();
        assert_eq!(names(&before), ["0x900010"]);
        let known = model.resolver.tables().kernel.len();
        let module = Block::encode(Kind::Symbols, b"900000 t poll\t[net]\n").unwrap();
        model.feed(&module, Duration::ZERO).unwrap();
        assert_eq!(names(&model.snapshot()), ["poll"]);
        assert_eq!(model.resolver.tables().kernel.len(), known + 1);
        // Names in an earlier snapshot don't change.
        let stacks = before.stacks(&Target::Process(1));
        assert_eq!(&*stacks[0].frames[0].name, "0x900010");
    }

    #[test]
    fn functions_of_mapped_files_have_names() {
        let (mut model, mut stream) = begun(SECOND);
        let mappings = ProcessMappings {
            pid: 7,
            name: String::new(),
            mappings: vec![Mapping {
                begin: 0x20_7000,
                end: 0x20_9000,
                file: "/bin/weaver".to_owned(),
                binary: Some(1),
                ..Mapping::default()
            }],
            ..ProcessMappings::default()
        };
        let binary = BinaryInfo {
            id: 1,
            segments: vec![Segment {
                offset: 0,
                address: 0x1000,
                length: 0x2000,
            }],
            ..BinaryInfo::default()
        };
        let function = |address, name: &str| BinaryFunction {
            address,
            length: 0x100,
            name: name.to_owned(),
        };
        let functions = [function(0x1000, "_ZN6Weaver5weaveEv"), function(0x1100, "")];
        let ticks = process(7, &[0x1000, 0x20_7010, 0x20_7110, 0x20_7210]);
        let bytes = [
            mappings.to_block().unwrap(),
            binary.to_block(&functions).unwrap(),
            stream.samples(&[ticks]),
        ];
        model.feed(&bytes.concat(), Duration::ZERO).unwrap();
        let expected = "Weaver::weave() do_syscall weaver+0x1100 weaver+0x1210";
        assert_eq!(names(&model.snapshot()).join(" "), expected);
    }

    #[test]
    fn mappings_of_endless_processes_are_evicted() {
        let (mut model, _) = begun(SECOND);
        // Blocks of the maximum size. A reader refuses blocks that are compressed too well.
        let name = noise(2 << 20) + &"x".repeat(50 << 20);
        let pids = 1..=5_i32;
        for pid in pids.clone() {
            let mapping = Mapping {
                end: 0x1000,
                file: name.clone(),
                ..Mapping::default()
            };
            let mappings = ProcessMappings {
                address_space: 0x2000 * u64::from(pid.unsigned_abs()),
                pid,
                time: 1,
                mappings: vec![mapping],
                ..ProcessMappings::default()
            };
            let block = mappings.to_block().unwrap();
            model.feed(&block, Duration::ZERO).unwrap();
        }
        let spaces = &model.resolver.tables().spaces;
        let is_known = |pid: i32| {
            let set = spaces.at(0x2000 * u64::from(pid.unsigned_abs()), pid, 1);
            spaces.find(set, 0).is_some()
        };
        let known: Vec<i32> = pids.filter(|pid| is_known(*pid)).collect();
        assert_eq!(known, [5]);
    }

    /// Text that hardly compresses.
    fn noise(length: usize) -> String {
        let next = |seed: &u64| Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        let seeds = std::iter::successors(Some(1), next);
        let letters = seeds.map(|seed: u64| b'a' + u8::try_from(seed >> 60).unwrap());
        letters.take(length).map(char::from).collect()
    }

    #[test]
    fn invalid_data_ends_with_an_error() {
        let mut model = Model::new(SECOND, Duration::ZERO);
        assert!(model.feed(&[1; 100], SECOND).is_err());
    }
}
