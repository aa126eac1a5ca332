//! Recordings in files.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use super::block::{Block, HEADER, Kind};
use super::budget::Budget;
use super::bytes::Bytes;
use super::observer::{Observer, Unobserved};
use super::piece::{Body, Details, Piece};
use super::reader::Reader;
use super::samples::DecodedBlock;
use super::{
    Account, Binary, BlockNumbers, BlockTimes, FileError, GeneratedCode, KernelInfo,
    LanguageFunction, PauseInfo, ProcessLabels, ProcessMappings, ReadError, RecordingInfo,
    ResetInfo,
};
use crate::Ticks;
use crate::exits::ExitInterval;
use crate::tasks::TaskLook;

/// A recording in a file, up to its last whole block. Each of its functions reads the file again.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    bytes: Bytes,
    /// The offset at which reading ends, in bytes. It is below the file's length after an interrupt.
    end: Cell<usize>,
    unpacked: Cell<u64>,
}

/// How many blocks are unpacked ahead. They may have 64 MiB each.
const AHEAD: usize = 3;
/// Maximum size of a block that is decoded ahead, too, in bytes. Recorders make none that is longer, and a decoded one takes more memory.
const MAX_DECODED: usize = 1 << 20;

/// The kinds of blocks that are skipped if only samples, only looks at tasks, only exits, or none of them are needed.
const BUT_SAMPLES: &[Kind] = &[Kind::Tasks, Kind::Exits];
const BUT_LOOKS: &[Kind] = &[Kind::Times, Kind::Details, Kind::Samples, Kind::Exits];
const BUT_EXITS: &[Kind] = &[Kind::Times, Kind::Details, Kind::Samples, Kind::Tasks];
const BUT_CONTENTS: &[Kind] = &[
    Kind::Times,
    Kind::Details,
    Kind::Samples,
    Kind::Tasks,
    Kind::Exits,
];
/// The kinds of blocks that are skipped after unwanted times, until the next samples.
const OTHER_TIMES: &[Kind] = &[Kind::Details, Kind::Samples, Kind::Tasks, Kind::Exits];

/// The contents of a recording besides samples.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// What the recording is about.
    pub info: RecordingInfo,
    /// The symbols of the guest's kernel and its modules, in the form of `/proc/kallsyms`, in the order in which they
    /// came; empty when they weren't known.
    pub symbols: String,
    /// The offsets in `symbols` at which the blocks of symbols end, in bytes.
    pub symbol_ends: Vec<usize>,
    /// The guest's kernel if known; after a restart, the one that started then.
    pub kernel: Option<KernelInfo>,
    /// The guest's restarts, in the order of the file.
    pub resets: Vec<ResetInfo>,
    /// The guest's pauses and their ends, in the order of the file.
    pub pauses: Vec<PauseInfo>,
    /// Executable mappings, in the order of the file.
    pub mappings: Vec<ProcessMappings>,
    /// Labels of processes, in the order of the file.
    pub labels: Vec<ProcessLabels>,
    /// Functions of languages, in the order of the file.
    pub functions: Vec<LanguageFunction>,
    /// Names of generated code, in the order of the file.
    pub generated_code: Vec<GeneratedCode>,
    /// Files that code was executed from.
    pub binaries: Vec<Binary>,
    /// Whether it has exits of the guest's vCPUs.
    pub has_exits: bool,
    /// The number of blocks of symbols, mappings and files that were dropped because of the limits.
    pub left_out: u64,
    /// The account of the ticks in the file.
    pub account: Account,
    /// The account that the recorder closed the file with; `None` when it was cut off before.
    pub closed: Option<Account>,
    /// The number of bytes at the file's end that belong to no whole block.
    pub cut_off: usize,
    /// The number of bytes that weren't read because reading was interrupted.
    pub unread: usize,
}

impl Recording {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file can't be read, or is no recording of a known format.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::of_bytes(path, Bytes::open(path).map_err(FileError::read(path))?)
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
        let read = recording.bytes.read(0, &mut begin);
        read.map_err(FileError::read(path))?;
        reader.push(begin.get(..HEADER).unwrap_or_default());
        let block = reader.next_block();
        block.map_err(|error| FileError::at(path, error))?;
        if reader.offset() == 0 {
            return Err(FileError::NotARecording(path.to_owned()));
        }
        Ok(recording)
    }

    /// The length of the file, in bytes.
    pub fn length(&self) -> usize {
        self.bytes.length()
    }

    /// The unpacked size of its blocks in all reads so far, in bytes, without blocks that were skipped.
    pub fn unpacked(&self) -> u64 {
        self.unpacked.get()
    }

    /// Reads all of it: hands each run of ticks, and the frames of its sample's stack, to `each`.
    ///
    /// # Errors
    /// It was cut off before its first block, or the contents of a whole block are invalid.
    pub fn read(&self, each: impl FnMut(&Ticks, &[u64])) -> Result<Contents, FileError> {
        self.read_observed(&Unobserved, each)
    }

    /// As [`Self::read`], while `observer` gets the progress. If the observer interrupts, this recording ends there, also for later reads.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_observed(
        &self,
        observer: &dyn Observer,
        mut each: impl FnMut(&Ticks, &[u64]),
    ) -> Result<Contents, FileError> {
        self.read_wanted(observer, None, |ticks, frames, _| each(ticks, frames))
    }

    /// As [`Self::read_observed`], but with the ticks of only those blocks that are `wanted`: it gets the times of each block in the order of the file. Other
    /// blocks of samples aren't unpacked, and aren't in the account. Older recordings have no times: all of their blocks are read. `each` also gets the numbers of
    /// the sample's thread and stack in its block. If all are wanted, another thread reads, unpacks and decodes blocks ahead.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_wanted(
        &self,
        observer: &dyn Observer,
        mut wanted: Option<&mut dyn FnMut(&BlockTimes) -> bool>,
        mut each: impl FnMut(&Ticks, &[u64], BlockNumbers),
    ) -> Result<Contents, FileError> {
        let is_ahead = wanted.is_none();
        let mut block = 0;
        let mut account = Account::default();
        let mut details = Details::default();
        let mut passed_over = BUT_SAMPLES;
        let each = |body: Body<'_>| {
            match body {
                Body::Times(times) => {
                    let is_wanted = wanted.as_mut().is_none_or(|wanted| wanted(&times));
                    passed_over = if is_wanted { BUT_SAMPLES } else { OTHER_TIMES };
                }
                Body::Details(next) => details = next,
                Body::Samples(samples) => {
                    passed_over = BUT_SAMPLES;
                    let details = std::mem::take(&mut details);
                    block += 1;
                    samples.read_with(&details, |ticks, frames, numbers| {
                        account.enter(ticks);
                        each(ticks, frames, BlockNumbers { block, ..numbers });
                    })?;
                }
                Body::Looks(_) | Body::Exits(_) => {}
            }
            Ok(passed_over)
        };
        let mut contents = if is_ahead {
            self.read_ahead(BUT_SAMPLES, observer, each)?
        } else {
            self.read_blocks(BUT_SAMPLES, observer, each)?
        };
        contents.account = account;
        Ok(contents)
    }

    /// Reads all but the samples. Samples can refer to data that comes after them.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn contents(&self) -> Result<Contents, FileError> {
        self.read_blocks(BUT_CONTENTS, &Unobserved, |_| Ok(BUT_CONTENTS))
    }

    /// Reads its properties only.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn info(&self) -> Result<RecordingInfo, FileError> {
        let mut blocks = self.blocks(BUT_CONTENTS);
        while let Some(next) = blocks.next()? {
            let piece = next.block.piece();
            let piece = piece.map_err(|error| FileError::at(&self.path, error))?;
            if let Some(Piece::Info(info)) = piece {
                return Ok(info);
            }
        }
        Err(FileError::Empty(self.path.clone()))
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
        self.read_blocks(BUT_LOOKS, observer, |body| {
            if let Body::Looks(looks) = body {
                looks.read(&mut each)?;
            }
            Ok(BUT_LOOKS)
        })
    }

    /// Reads all but the samples: hands the exits of each interval to `each`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn exits(
        &self,
        observer: &dyn Observer,
        mut each: impl FnMut(&ExitInterval),
    ) -> Result<Contents, FileError> {
        self.read_blocks(BUT_EXITS, observer, |body| {
            if let Body::Exits(exits) = body {
                each(&exits.read()?);
            }
            Ok(BUT_EXITS)
        })
    }

    /// Reads all blocks but those of the kinds that are `passed_over`, and hands those of samples, looks at tasks and exits to `each`, which returns the kinds
    /// that are skipped from then on.
    fn read_blocks(
        &self,
        passed_over: &'static [Kind],
        observer: &dyn Observer,
        each: impl FnMut(Body<'_>) -> Result<&'static [Kind], ReadError>,
    ) -> Result<Contents, FileError> {
        let mut blocks = self.blocks(passed_over);
        let next = |kinds: Option<&'static [Kind]>| {
            if let Some(kinds) = kinds {
                blocks.reader.pass_over(kinds);
            }
            blocks.next()
        };
        self.take_blocks(observer, next, each)
    }

    /// The same while a thread reads, unpacks and decodes some blocks ahead. The kinds that `each` returns stay the same.
    fn read_ahead(
        &self,
        passed_over: &'static [Kind],
        observer: &dyn Observer,
        each: impl FnMut(Body<'_>) -> Result<&'static [Kind], ReadError>,
    ) -> Result<Contents, FileError> {
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(AHEAD);
            let mut blocks = self.blocks(passed_over);
            let ahead = move || {
                while let Some(mut next) = blocks.next().transpose() {
                    if let Ok(next) = &mut next {
                        next.decode();
                    }
                    if sender.send(next).is_err() {
                        break;
                    }
                }
            };
            let thread = thread::Builder::new().name("unpack".into());
            if thread.spawn_scoped(scope, ahead).is_err() {
                return self.read_blocks(passed_over, observer, each);
            }
            self.take_blocks(observer, |_| receiver.recv().ok().transpose(), each)
        })
    }

    fn blocks(&self, passed_over: &'static [Kind]) -> Blocks<'_> {
        Blocks {
            path: &self.path,
            bytes: &self.bytes,
            reader: Reader::without(passed_over),
            pushed: 0,
            step: Vec::new(),
        }
    }

    fn take_blocks(
        &self,
        observer: &dyn Observer,
        mut next: impl FnMut(Option<&'static [Kind]>) -> Result<Option<UnpackedBlock>, FileError>,
        mut each: impl FnMut(Body<'_>) -> Result<&'static [Kind], ReadError>,
    ) -> Result<Contents, FileError> {
        let mut contents = Contents::default();
        let mut budget = Budget::default();
        let mut has_info = false;
        let before = self.unpacked.get();
        let mut done = HEADER;
        let mut kinds = None;
        while done < self.end.get() {
            let Some(next) = next(kinds)? else {
                break;
            };
            done = usize::try_from(next.end).unwrap_or(usize::MAX);
            let end = next.end;
            has_info |= next.block.kind == Some(Kind::Info);
            self.unpacked.set(before + next.unpacked);
            let taken = contents.take(next.block, next.decoded, &mut budget, &mut each);
            kinds = taken.map_err(|error| FileError::at(&self.path, error))?;
            let progress = observer.advance(end, self.bytes.length() as u64);
            if progress.is_break() && has_info {
                self.end.set(done);
            }
        }
        let rest = self.bytes.length().saturating_sub(done);
        if done < self.end.get() {
            contents.cut_off = rest;
        } else {
            contents.unread = rest;
        }
        if has_info {
            Ok(contents)
        } else {
            Err(FileError::Empty(self.path.clone()))
        }
    }
}

/// A block, where it ends in the file, and the unpacked size of all until there, in bytes.
struct UnpackedBlock {
    block: Block,
    /// Its samples, if it has some and was decoded already.
    decoded: Option<DecodedBlock>,
    end: u64,
    unpacked: u64,
}

impl UnpackedBlock {
    /// Decodes its samples, if it isn't too long.
    fn decode(&mut self) {
        let contents = &self.block.contents;
        if self.block.kind == Some(Kind::Samples) && contents.len() <= MAX_DECODED {
            self.decoded = Some(DecodedBlock::new(contents));
        }
    }
}

/// The blocks of a recording, in their order.
struct Blocks<'a> {
    path: &'a Path,
    bytes: &'a Bytes,
    reader: Reader,
    /// How many bytes the reader has been given.
    pushed: usize,
    step: Vec<u8>,
}

impl Blocks<'_> {
    /// The next block; `None` after the last whole one.
    fn next(&mut self) -> Result<Option<UnpackedBlock>, FileError> {
        loop {
            match self.reader.next_block() {
                Ok(Some(block)) => {
                    return Ok(Some(UnpackedBlock {
                        block,
                        decoded: None,
                        end: self.reader.offset(),
                        unpacked: self.reader.unpacked(),
                    }));
                }
                Ok(None) => {}
                // All blocks before are valid.
                Err(ReadError::CutOff { .. }) => return Ok(None),
                Err(error) => return Err(FileError::at(self.path, error)),
            }
            let read = self.bytes.read(self.pushed, &mut self.step);
            read.map_err(FileError::read(self.path))?;
            if self.step.is_empty() {
                return Ok(None);
            }
            self.reader.push(&self.step);
            self.pushed += self.step.len();
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

    /// Adds the contents of `block`, if `budget` allows it. Samples, which may be `decoded`, looks at tasks and exits go to `each`, whose result is returned.
    fn take(
        &mut self,
        block: Block,
        decoded: Option<DecodedBlock>,
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
            Some(Piece::Pause(pause)) => self.pauses.push(pause),
            Some(Piece::Symbols(text)) => {
                if !self.symbols.is_empty() && !self.symbols.ends_with('\n') {
                    self.symbols.push('\n');
                }
                self.symbols.push_str(&text);
                self.symbol_ends.push(self.symbols.len());
            }
            Some(Piece::Mappings(mappings)) => self.mappings.push(mappings),
            Some(Piece::Labels(labels)) => self.labels.push(labels),
            Some(Piece::Functions(more)) => self.functions.extend(more.functions),
            Some(Piece::GeneratedCode(code)) => self.generated_code.push(code),
            Some(Piece::Binary(binary)) => self.binaries.push(binary),
            Some(Piece::Samples(mut samples)) => {
                samples.decoded = decoded;
                return each(Body::Samples(&samples)).map(Some);
            }
            Some(Piece::Details(details)) => return each(Body::Details(details)).map(Some),
            Some(Piece::Times(times)) => return each(Body::Times(times)).map(Some),
            Some(Piece::Looks(looks)) => return each(Body::Looks(&looks)).map(Some),
            Some(Piece::Exits(exits)) => {
                self.has_exits = true;
                return each(Body::Exits(&exits)).map(Some);
            }
            Some(Piece::End(account)) => self.closed = Some(account),
            None => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
