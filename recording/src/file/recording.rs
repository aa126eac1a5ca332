//! Recordings in files.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::block::{Block, HEADER, Kind};
use super::budget::Budget;
use super::bytes::Bytes;
use super::observer::{Observer, Unobserved};
use super::piece::{Body, Details, Piece};
use super::reader::Reader;
use super::{
    Account, Binary, BlockTimes, FileError, KernelInfo, ProcessMappings, ReadError, RecordingInfo,
    ResetInfo,
};
use crate::Ticks;
use crate::tasks::TaskLook;

/// A recording in a file, as far as it is whole. The file is read again by each of its functions.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    bytes: Bytes,
    /// Where reading ends, in bytes: less than there are once it was interrupted.
    end: Cell<usize>,
    unpacked: Cell<u64>,
}

/// What is passed over where only the samples, only the looks at tasks, or none of them are wanted.
const BUT_SAMPLES: &[Kind] = &[Kind::Tasks];
const BUT_LOOKS: &[Kind] = &[Kind::Times, Kind::Details, Kind::Samples];
const BUT_CONTENTS: &[Kind] = &[Kind::Times, Kind::Details, Kind::Samples, Kind::Tasks];
/// The same after times that aren't wanted, until samples come.
const OTHER_TIMES: &[Kind] = &[Kind::Details, Kind::Samples, Kind::Tasks];

/// What there is besides samples.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// What the recording is about.
    pub info: RecordingInfo,
    /// The symbols of the guest's kernel and its modules, in the form of `/proc/kallsyms`, in the order in which they
    /// came; empty when they weren't known.
    pub symbols: String,
    /// Where in `symbols` each block of them ends, in bytes.
    pub symbol_ends: Vec<usize>,
    /// The guest's kernel, when it is known; after a restart, as it runs since.
    pub kernel: Option<KernelInfo>,
    /// The guest's restarts, in the order of the file.
    pub resets: Vec<ResetInfo>,
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
        let bytes = Bytes::open(path).map_err(|source| FileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::of_bytes(path, bytes)
    }

    /// A recording whose contents are in memory already; messages call it `path`.
    ///
    /// # Errors
    /// It is no recording of a known format.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, FileError> {
        Self::of_bytes(path, bytes.into())
    }

    fn of_bytes(path: &Path, bytes: Bytes) -> Result<Self, FileError> {
        let recording = Self {
            path: path.to_owned(),
            end: Cell::new(bytes.length()),
            unpacked: Cell::new(0),
            bytes,
        };
        let mut reader = Reader::default();
        let mut begin = Vec::new();
        recording.read_bytes(0, &mut begin)?;
        reader.push(begin.get(..HEADER).unwrap_or_default());
        let block = reader.next_block();
        block.map_err(|error| FileError::at(path, error))?;
        if reader.offset() == 0 {
            return Err(FileError::NotARecording(path.to_owned()));
        }
        Ok(recording)
    }

    fn read_bytes(&self, begin: usize, into: &mut Vec<u8>) -> Result<(), FileError> {
        let read = self.bytes.read(begin, into);
        read.map_err(|source| FileError::Read {
            path: self.path.clone(),
            source,
        })
    }

    /// Bytes of the file.
    pub fn length(&self) -> usize {
        self.bytes.length()
    }

    /// How many bytes its blocks have unpacked to so far, in all reads together. Blocks that were passed over aren't in it.
    pub fn unpacked(&self) -> u64 {
        self.unpacked.get()
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
        each: impl FnMut(&Ticks, &[u64]),
    ) -> Result<Contents, FileError> {
        self.read_wanted(observer, |_| true, each)
    }

    /// As [`Self::read_observed`], but samples and ticks without one only of the blocks that are `wanted`: it gets the times of the next block in
    /// the order of the file. What blocks of samples aren't wanted isn't unpacked, and isn't in the account. Older recordings don't tell
    /// times: of these, all is read.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_wanted(
        &self,
        observer: &dyn Observer,
        mut wanted: impl FnMut(&BlockTimes) -> bool,
        mut each: impl FnMut(&Ticks, &[u64]),
    ) -> Result<Contents, FileError> {
        let mut account = Account::default();
        let mut details = Details::default();
        let mut passed_over = BUT_SAMPLES;
        let mut contents = self.read_blocks(Reader::without(passed_over), observer, |body| {
            match body {
                Body::Times(times) if !wanted(&times) => passed_over = OTHER_TIMES,
                Body::Times(_) => passed_over = BUT_SAMPLES,
                Body::Details(next) => details = next,
                Body::Samples(samples) => {
                    passed_over = BUT_SAMPLES;
                    let details = std::mem::take(&mut details);
                    samples.read_with(&details, |ticks, frames| {
                        account.enter(ticks);
                        each(ticks, frames);
                    })?;
                }
                Body::Looks(_) => {}
            }
            Ok(passed_over)
        })?;
        contents.account = account;
        Ok(contents)
    }

    /// Reads all but the samples: what samples are about may come after them.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn contents(&self) -> Result<Contents, FileError> {
        let reader = Reader::without(BUT_CONTENTS);
        self.read_blocks(reader, &Unobserved, |_| Ok(BUT_CONTENTS))
    }

    /// Reads all but the samples: hands each look at the guest's tasks to `each`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn looks(
        &self,
        observer: &dyn Observer,
        mut each: impl FnMut(&TaskLook),
    ) -> Result<Contents, FileError> {
        let reader = Reader::without(BUT_LOOKS);
        self.read_blocks(reader, observer, |body| {
            if let Body::Looks(looks) = body {
                looks.read(&mut each)?;
            }
            Ok(BUT_LOOKS)
        })
    }

    /// Has `reader` read all blocks, and hands those of samples and of looks at tasks to `each`, which says what kinds are passed over from then
    /// on.
    fn read_blocks(
        &self,
        mut reader: Reader,
        observer: &dyn Observer,
        mut each: impl FnMut(Body<'_>) -> Result<&'static [Kind], ReadError>,
    ) -> Result<Contents, FileError> {
        let mut contents = Contents::default();
        let mut budget = Budget::default();
        let mut has_facts = false;
        let before = self.unpacked.get();
        let (mut pushed, mut step) = (0, Vec::new());
        while reader.offset() < self.end.get() as u64 {
            let block = match reader.next_block() {
                Ok(Some(block)) => block,
                Ok(None) => {
                    self.read_bytes(pushed, &mut step)?;
                    if step.is_empty() {
                        break;
                    }
                    reader.push(&step);
                    pushed += step.len();
                    continue;
                }
                // All before that is good.
                Err(ReadError::CutOff { .. }) => break,
                Err(error) => return Err(FileError::at(&self.path, error)),
            };
            has_facts |= block.kind == Some(Kind::Info);
            self.unpacked.set(before + reader.unpacked());
            let taken = contents.take(block, &mut budget, &mut each);
            if let Some(kinds) = taken.map_err(|error| FileError::at(&self.path, error))? {
                reader.pass_over(kinds);
            }
            let progress = observer.advance(reader.offset(), self.bytes.length() as u64);
            if progress.is_break() && has_facts {
                self.end
                    .set(usize::try_from(reader.offset()).unwrap_or(usize::MAX));
            }
        }
        let done = usize::try_from(reader.offset()).unwrap_or(usize::MAX);
        let rest = self.bytes.length().saturating_sub(done);
        if done < self.end.get() {
            contents.cut_off = rest;
        } else {
            contents.unread = rest;
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

    /// Takes what `block` says, if `budget` allows it. Samples and looks at tasks go to `each`, whose result is returned.
    fn take(
        &mut self,
        block: Block,
        budget: &mut Budget,
        each: &mut impl FnMut(Body<'_>) -> Result<&'static [Kind], ReadError>,
    ) -> Result<Option<&'static [Kind]>, ReadError> {
        if !budget.take(&block) {
            self.left_out += 1;
            return Ok(None);
        }
        match block.piece()? {
            Some(Piece::Info(info)) => self.info = info,
            Some(Piece::Kernel(kernel)) => self.kernel = Some(kernel),
            Some(Piece::Reset(reset)) => self.resets.push(reset),
            Some(Piece::Symbols(text)) => {
                if !self.symbols.is_empty() && !self.symbols.ends_with('\n') {
                    self.symbols.push('\n');
                }
                self.symbols.push_str(&text);
                self.symbol_ends.push(self.symbols.len());
            }
            Some(Piece::Mappings(mappings)) => self.mappings.push(mappings),
            Some(Piece::Binary(binary)) => self.binaries.push(binary),
            Some(Piece::Samples(samples)) => return each(Body::Samples(&samples)).map(Some),
            Some(Piece::Details(details)) => return each(Body::Details(details)).map(Some),
            Some(Piece::Times(times)) => return each(Body::Times(times)).map(Some),
            Some(Piece::Looks(looks)) => return each(Body::Looks(&looks)).map(Some),
            Some(Piece::End(account)) => self.closed = Some(account),
            None => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::{BinaryInfo, Mapping, SamplesEncoder, header};
    use super::*;
    use crate::Sample;

    fn recording() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header().to_vec();
        let mut ends = Vec::new();
        let info = serde_json::to_vec(&RecordingInfo::default()).unwrap();
        let mut add = |kind, contents: &[u8]| {
            bytes.extend(Block::encode(kind, contents).unwrap());
            ends.push(bytes.len());
        };
        add(Kind::Info, &info);
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
        Recording::of_bytes(Path::new("test"), bytes.to_vec().into())?.read(|_, _| {})
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
    fn resets_are_told_in_their_order() {
        let (mut bytes, _) = recording();
        for time in [7, 9] {
            bytes.extend((ResetInfo { time }).to_block().unwrap());
        }
        let times: Vec<u64> = read(&bytes)
            .unwrap()
            .resets
            .iter()
            .map(|reset| reset.time)
            .collect();
        assert_eq!(times, [7, 9]);
    }

    #[test]
    fn symbols_mappings_and_files_add_up() {
        let (mut bytes, _) = recording();
        bytes.extend(Block::encode(Kind::Symbols, b"ffffffffc0000000 t poll\t[net]\n").unwrap());
        let kernel = KernelInfo {
            release: "6.12.0".to_owned(),
            build_id: "ab".to_owned(),
            slide: 0x1000_0000,
        };
        bytes.extend(kernel.to_block().unwrap());
        for time in [3, 9] {
            let mappings = ProcessMappings {
                address_space: 0x2000,
                pid: 7,
                name: "server".to_owned(),
                time,
                mappings: vec![Mapping {
                    binary: Some(4),
                    ..Mapping::default()
                }],
            };
            bytes.extend(mappings.to_block().unwrap());
        }
        let info = BinaryInfo {
            id: 4,
            ..BinaryInfo::default()
        };
        bytes.extend(info.to_block(&[]).unwrap());
        let contents = read(&bytes).unwrap();
        assert_eq!(contents.symbols.lines().count(), 2);
        assert_eq!(contents.kernel, Some(kernel));
        let times: Vec<u64> = contents.mappings.iter().map(|set| set.time).collect();
        assert_eq!(times, [3, 9]);
        assert_eq!(contents.binaries[0].info, info);
        assert_eq!(contents.left_out, 0);
    }

    #[test]
    fn what_takes_too_much_memory_is_left_out() {
        let (mut bytes, _) = recording();
        // Lines that no packer makes small.
        let mut state = 1_u32;
        let letters = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            [state.to_be_bytes()[0] & 0x7f, b'\n']
        });
        let lines: Vec<u8> = letters.take(2 << 20).flatten().collect();
        let long = Block::encode(Kind::Symbols, &lines).unwrap();
        bytes.extend(&long);
        bytes.extend(&long);
        bytes.extend(Block::encode(Kind::Symbols, b"1 T a\n").unwrap());
        let contents = read(&bytes).unwrap();
        assert_eq!(contents.symbol_blocks().last(), Some("1 T a\n"));
        assert_eq!(contents.symbol_blocks().count(), 3);
        assert_eq!(contents.left_out, 1);
    }

    #[test]
    fn a_small_file_that_unpacks_to_much_is_refused() {
        for kind in [Kind::Symbols, Kind::Mappings, Kind::Binary, Kind::Samples] {
            let (mut bytes, _) = recording();
            let offset = bytes.len() as u64;
            bytes.extend(Block::encode(kind, &vec![0; 60 << 20]).unwrap());
            assert!(bytes.len() < 12_000);
            let error = read(&bytes).unwrap_err();
            assert!(
                matches!(error, FileError::Damaged { offset: at, what, .. }
                    if at == offset && what.contains("far more than recordings do")),
                "{error}"
            );
        }
        // In many small blocks, too.
        let (mut bytes, _) = recording();
        for _ in 0..100 {
            bytes.extend(Block::encode(Kind::Symbols, &[b'\n'; 512 << 10]).unwrap());
        }
        assert!(matches!(read(&bytes), Err(FileError::Damaged { .. })));
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
        let recording = Recording::of_bytes(Path::new("test"), bytes.into()).unwrap();
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
        let recording = Recording::of_bytes(Path::new("test"), bytes.into()).unwrap();
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
        assert!(matches!(error, FileError::Damaged { offset: 16, .. }));
    }
}
