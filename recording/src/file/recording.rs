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

/// A recording in a file, up to its last whole block. Each of its functions reads the file again.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    bytes: Bytes,
    /// The offset at which reading ends, in bytes. It is below the file's length after an interrupt.
    end: Cell<usize>,
    unpacked: Cell<u64>,
}

/// The kinds of blocks that are skipped if only samples, only looks at tasks, or neither are needed.
const BUT_SAMPLES: &[Kind] = &[Kind::Tasks];
const BUT_LOOKS: &[Kind] = &[Kind::Times, Kind::Details, Kind::Samples];
const BUT_CONTENTS: &[Kind] = &[Kind::Times, Kind::Details, Kind::Samples, Kind::Tasks];
/// The kinds of blocks that are skipped after times that aren't wanted, until the next samples.
const OTHER_TIMES: &[Kind] = &[Kind::Details, Kind::Samples, Kind::Tasks];

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
    /// Executable mappings, in the order of the file.
    pub mappings: Vec<ProcessMappings>,
    /// Files that code was executed from.
    pub binaries: Vec<Binary>,
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
        each: impl FnMut(&Ticks, &[u64]),
    ) -> Result<Contents, FileError> {
        self.read_wanted(observer, |_| true, each)
    }

    /// As [`Self::read_observed`], but with the ticks of only those blocks that are `wanted`: it gets the times of each block in the order of the
    /// file. Other blocks of samples aren't unpacked, and aren't in the account. Older recordings have no times: all of their blocks are
    /// read.
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

    /// Reads all but the samples. Samples can refer to data that comes after them.
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

    /// Has `reader` read all blocks, and hands those of samples and of looks at tasks to `each`, which returns the kinds that are skipped from then
    /// on.
    fn read_blocks(
        &self,
        mut reader: Reader,
        observer: &dyn Observer,
        mut each: impl FnMut(Body<'_>) -> Result<&'static [Kind], ReadError>,
    ) -> Result<Contents, FileError> {
        let mut contents = Contents::default();
        let mut budget = Budget::default();
        let mut has_info = false;
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
                // All blocks before are valid.
                Err(ReadError::CutOff { .. }) => break,
                Err(error) => return Err(FileError::at(&self.path, error)),
            };
            has_info |= block.kind == Some(Kind::Info);
            self.unpacked.set(before + reader.unpacked());
            let taken = contents.take(block, &mut budget, &mut each);
            if let Some(kinds) = taken.map_err(|error| FileError::at(&self.path, error))? {
                reader.pass_over(kinds);
            }
            let progress = observer.advance(reader.offset(), self.bytes.length() as u64);
            if progress.is_break() && has_info {
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
        if has_info {
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

    /// Adds the contents of `block`, if `budget` allows it. Samples and looks at tasks go to `each`, whose result is returned.
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
mod tests;
