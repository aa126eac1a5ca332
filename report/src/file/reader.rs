//! Reading a recording.

use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kvmprof_devices::profiling::Ticks;
use serde::de::DeserializeOwned;

use super::block::{Block, HEADER, Kind, MAGIC, VERSION};
use super::samples::decode;
use super::{Account, Binary, Facts, FileError, KernelFacts, ProcessMappings};

/// Bytes of symbols, mappings and files that are kept at most: a small file can say that it unpacks to any amount.
const MAX_SYMBOLS: usize = 64 << 20;
const MAX_MAPPINGS: usize = 128 << 20;
const MAX_BINARIES: usize = 256 << 20;
/// What a block counts for at least, in bytes: each block of symbols takes its time.
const LEAST_SYMBOLS: usize = 32 << 10;

/// Bytes that there is still room for.
struct Room {
    symbols: usize,
    mappings: usize,
    binaries: usize,
}

impl Room {
    const ALL: Self = Self {
        symbols: MAX_SYMBOLS,
        mappings: MAX_MAPPINGS,
        binaries: MAX_BINARIES,
    };

    /// Whether there is room for a block of `kind` with `length` bytes, which it then takes.
    fn take(&mut self, kind: Kind, length: usize) -> bool {
        let (room, length) = match kind {
            Kind::Symbols => (&mut self.symbols, length.max(LEAST_SYMBOLS)),
            Kind::Mappings => (&mut self.mappings, length),
            Kind::Binary => (&mut self.binaries, length),
            Kind::Facts | Kind::Samples | Kind::End | Kind::Kernel => return true,
        };
        match room.checked_sub(length) {
            Some(rest) => {
                *room = rest;
                true
            }
            None => false,
        }
    }
}

/// Looks on while a recording is read.
pub trait Observer {
    /// `done` of `whole` have been seen to, of whatever takes time. A break ends it there, with what there is.
    fn advance(&self, done: u64, whole: u64) -> ControlFlow<()>;
}

/// Nobody looks on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn advance(&self, _done: u64, _whole: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A recording in memory, as far as it is whole.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Where reading ends, in bytes: less than there are once it was interrupted.
    end: Cell<usize>,
}

/// What there is besides samples.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// What the recording is about.
    pub facts: Facts,
    /// The symbols of the guest's kernel and its modules, in the form of `/proc/kallsyms`, in the order in which they
    /// came; empty when they weren't known.
    pub symbols: String,
    /// Where in `symbols` each block of them ends, in bytes.
    pub symbol_ends: Vec<usize>,
    /// The guest's kernel, when it is known.
    pub kernel: Option<KernelFacts>,
    /// Executable mappings, in the order of the file.
    pub mappings: Vec<ProcessMappings>,
    /// Files that code was executed from.
    pub binaries: Vec<Binary>,
    /// How many blocks of symbols, mappings and files were more than is kept.
    pub left_out: u64,
    /// Where every tick went, by what is in the file.
    pub account: Account,
    /// The account that the recorder closed the file with; `None` when it was cut off before.
    pub closed: Option<Account>,
    /// Bytes at the file's end that belong to no whole block.
    pub cut_off: usize,
    /// Bytes that weren't read, because reading was interrupted.
    pub unread: usize,
}

impl Recording {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file can't be read, or is no recording of a known format.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let bytes = fs::read(path).map_err(|source| FileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::of_bytes(path, bytes)
    }

    fn of_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, FileError> {
        let header = bytes.get(..HEADER);
        let header = header.filter(|header| header.starts_with(&MAGIC));
        let header = header.ok_or_else(|| FileError::NotARecording(path.to_owned()))?;
        let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if version != VERSION {
            return Err(FileError::UnknownVersion {
                path: path.to_owned(),
                version,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            end: Cell::new(bytes.len()),
            bytes,
        })
    }

    /// Reads all of it: hands each run of ticks, and the frames of its sample's stack, to `each`.
    ///
    /// # Errors
    /// It was cut off before its first block, or a block that is whole makes no sense.
    pub fn read(&self, each: impl FnMut(&Ticks, &[u64])) -> Result<Contents, FileError> {
        self.read_observed(&Unobserved, each)
    }

    /// As [`Self::read`], while `observer` looks on. Once it has interrupted, this recording ends there for ever.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_observed(
        &self,
        observer: &dyn Observer,
        mut each: impl FnMut(&Ticks, &[u64]),
    ) -> Result<Contents, FileError> {
        let mut account = Account::default();
        let mut contents = self.read_blocks(None, observer, |block| {
            let is_sound = decode(block, |ticks, frames| {
                account.enter(ticks);
                each(ticks, frames);
            });
            is_sound.ok_or("its samples make no sense")
        })?;
        contents.account = account;
        Ok(contents)
    }

    /// Reads all but the samples: what samples are about may come after them.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn contents(&self) -> Result<Contents, FileError> {
        self.read_blocks(Some(Kind::Samples), &Unobserved, |_| Ok(()))
    }

    /// Reads all blocks but those `passed_over`, and hands those of samples to `each`.
    fn read_blocks(
        &self,
        passed_over: Option<Kind>,
        observer: &dyn Observer,
        mut each: impl FnMut(&[u8]) -> Result<(), &'static str>,
    ) -> Result<Contents, FileError> {
        let mut contents = Contents::default();
        let mut offset = HEADER;
        let mut has_facts = false;
        let mut room = Room::ALL;
        while offset < self.end.get()
            && let Some(block) =
                Block::decode_but(self.bytes.get(offset..).unwrap_or_default(), passed_over)
        {
            let damaged = |what| FileError::Damaged {
                path: self.path.clone(),
                offset,
                what,
            };
            let length = block.length;
            match block.kind {
                Some(Kind::Samples) => each(&block.contents).map_err(damaged)?,
                Some(kind) => {
                    has_facts |= kind == Kind::Facts;
                    contents
                        .take(kind, block.contents, &mut room)
                        .map_err(damaged)?;
                }
                None => {}
            }
            offset += length;
            let progress = observer.advance(offset as u64, self.bytes.len() as u64);
            if progress.is_break() && has_facts {
                self.end.set(offset);
            }
        }
        if offset < self.end.get() {
            contents.cut_off = self.bytes.len() - offset;
        } else {
            contents.unread = self.bytes.len() - offset;
        }
        if has_facts {
            Ok(contents)
        } else {
            Err(FileError::Empty(self.path.clone()))
        }
    }
}

impl Contents {
    /// The blocks of symbols, in the order of the file.
    pub fn symbol_blocks(&self) -> impl Iterator<Item = &str> {
        let begins = [0].into_iter().chain(self.symbol_ends.iter().copied());
        let ranges = begins.zip(self.symbol_ends.iter().copied());
        ranges.filter_map(|(begin, end)| self.symbols.get(begin..end))
    }

    /// Takes what a block of `kind` has, none of samples, as long as there is `room` for it. Otherwise the
    /// result says what is wrong with it.
    fn take(&mut self, kind: Kind, block: Vec<u8>, room: &mut Room) -> Result<(), &'static str> {
        if !room.take(kind, block.len()) {
            self.left_out += 1;
            return Ok(());
        }
        match kind {
            Kind::Facts => {
                self.facts = json(&block).ok_or("its facts are no JSON of that form")?;
            }
            Kind::Symbols => {
                let text = String::from_utf8(block).map_err(|_| "its symbols are no text")?;
                if !self.symbols.is_empty() && !self.symbols.ends_with('\n') {
                    self.symbols.push('\n');
                }
                self.symbols.push_str(&text);
                self.symbol_ends.push(self.symbols.len());
            }
            Kind::Samples => {}
            Kind::End => {
                let account = json(&block).ok_or("its account is no JSON of that form")?;
                self.closed = Some(account);
            }
            Kind::Mappings => {
                let mappings = json(&block).ok_or("its mappings are no JSON of that form")?;
                self.mappings.push(mappings);
            }
            Kind::Binary => {
                let binary = Binary::decode(block).ok_or("its file is not of that form")?;
                self.binaries.push(binary);
            }
            Kind::Kernel => {
                let kernel = json(&block).ok_or("its kernel is no JSON of that form")?;
                self.kernel = Some(kernel);
            }
        }
        Ok(())
    }
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{BinaryFacts, Mapping, SamplesEncoder, header};
    use super::*;
    use kvmprof_devices::profiling::Sample;

    fn recording() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header().to_vec();
        let mut ends = Vec::new();
        let facts = serde_json::to_vec(&Facts::default()).unwrap();
        let mut add = |kind, contents: &[u8]| {
            bytes.extend(Block::encode(kind, contents).unwrap());
            ends.push(bytes.len());
        };
        add(Kind::Facts, &facts);
        add(Kind::Symbols, b"ffffffff81000000 T _text\n");
        for count in 1..4 {
            let mut encoder = SamplesEncoder::default();
            for idle in 0..count {
                let ticks = Ticks {
                    idle,
                    sample: Some(Sample::default()),
                    ..Ticks::default()
                };
                encoder.push(&ticks, &[]);
            }
            add(Kind::Samples, &encoder.take().bytes);
        }
        let account = Account {
            ticks: 10,
            samples: 6,
            idle: 4,
            ..Account::default()
        };
        add(Kind::End, &serde_json::to_vec(&account).unwrap());
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> Result<Contents, FileError> {
        Recording::of_bytes(Path::new("test"), bytes.to_vec())?.read(|_, _| {})
    }

    #[test]
    fn a_whole_file_tells_all() {
        let (bytes, _) = recording();
        let contents = read(&bytes).unwrap();
        assert_eq!(contents.closed, Some(contents.account));
        assert!(contents.account.balances());
        assert_eq!(contents.cut_off, 0);
        assert_eq!(contents.symbols, "ffffffff81000000 T _text\n");
    }

    #[test]
    fn a_file_cut_off_anywhere_opens_up_to_there() {
        let (bytes, ends) = recording();
        let samples = [0, 0, 1, 3, 6, 6];
        for length in 0..bytes.len() {
            let whole = ends.iter().filter(|end| **end <= length).count();
            match read(&bytes[..length]) {
                Ok(contents) => {
                    assert_eq!(contents.account.samples, samples[whole - 1]);
                    assert_eq!(contents.closed, None);
                    assert_eq!(contents.cut_off, length - ends[whole - 1]);
                    assert!(contents.account.balances());
                }
                Err(FileError::NotARecording(_)) => assert!(length < HEADER),
                Err(FileError::Empty(_)) => assert!((HEADER..ends[0]).contains(&length)),
                Err(error) => panic!("{length} bytes: {error}"),
            }
        }
    }

    #[test]
    fn symbols_mappings_and_files_add_up() {
        let (mut bytes, _) = recording();
        bytes.extend(Block::encode(Kind::Symbols, b"ffffffffc0000000 t poll\t[net]\n").unwrap());
        let kernel = KernelFacts {
            release: "6.12.0".to_owned(),
            build_id: "ab".to_owned(),
            slide: 0x1000_0000,
        };
        bytes.extend(kernel.to_block().unwrap());
        for time in [3, 9] {
            let mappings = ProcessMappings {
                address_space: 0x2000,
                pid: 7,
                time,
                mappings: vec![Mapping {
                    binary: Some(4),
                    ..Mapping::default()
                }],
            };
            bytes.extend(mappings.to_block().unwrap());
        }
        let facts = BinaryFacts {
            id: 4,
            ..BinaryFacts::default()
        };
        bytes.extend(facts.to_block(&[]).unwrap());
        let contents = read(&bytes).unwrap();
        assert_eq!(contents.symbols.lines().count(), 2);
        assert_eq!(contents.kernel, Some(kernel));
        let times: Vec<u64> = contents.mappings.iter().map(|set| set.time).collect();
        assert_eq!(times, [3, 9]);
        assert_eq!(contents.binaries[0].facts, facts);
        assert_eq!(contents.left_out, 0);
    }

    #[test]
    fn a_file_that_unpacks_to_too_much_is_left_out() {
        let mut contents = Contents::default();
        let mut room = Room {
            symbols: LEAST_SYMBOLS + 1,
            ..Room::ALL
        };
        for text in ["1 T a\n", "2 T b\n"] {
            let block = text.as_bytes().to_vec();
            contents.take(Kind::Symbols, block, &mut room).unwrap();
        }
        assert_eq!(contents.symbols, "1 T a\n");
        assert_eq!(contents.left_out, 1);
    }

    /// Interrupts after some blocks.
    struct Impatient(Cell<u32>);

    impl Observer for Impatient {
        fn advance(&self, done: u64, whole: u64) -> ControlFlow<()> {
            assert!(done <= whole);
            match self.0.get().checked_sub(1) {
                Some(rest) => self.0.set(rest),
                None => return ControlFlow::Break(()),
            }
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn what_was_read_until_an_interrupt_counts() {
        let (bytes, ends) = recording();
        let length = bytes.len();
        let recording = Recording::of_bytes(Path::new("test"), bytes).unwrap();
        let impatient = Impatient(Cell::new(3));
        let contents = recording.read_observed(&impatient, |_, _| {}).unwrap();
        assert_eq!(contents.account.samples, 3);
        assert_eq!((contents.unread, contents.cut_off), (length - ends[3], 0));
        assert_eq!(contents.closed, None);
        // What reads it again finds the same.
        let again = recording.read(|_, _| {}).unwrap();
        assert_eq!(again.account, contents.account);
        assert_eq!(again.unread, contents.unread);
    }

    #[test]
    fn contents_need_no_samples() {
        let (bytes, _) = recording();
        let recording = Recording::of_bytes(Path::new("test"), bytes).unwrap();
        let contents = recording.contents().unwrap();
        assert_eq!(contents.symbols, "ffffffff81000000 T _text\n");
        assert_eq!(contents.account, Account::default());
        assert_eq!(contents.closed.unwrap().ticks, 10);
        assert_eq!(contents.cut_off, 0);
    }

    #[test]
    fn later_formats_are_refused() {
        let (mut bytes, _) = recording();
        bytes[8] = 2;
        let error = read(&bytes).unwrap_err();
        assert!(matches!(
            error,
            FileError::UnknownVersion { version: 2, .. }
        ));
    }

    #[test]
    fn a_whole_block_of_nonsense_is_an_error() {
        let mut bytes = header().to_vec();
        bytes.extend(Block::encode(Kind::Samples, &[0xff; 9]).unwrap());
        let error = read(&bytes).unwrap_err();
        assert!(matches!(error, FileError::Damaged { offset: HEADER, .. }));
    }
}
