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
mod tests;
