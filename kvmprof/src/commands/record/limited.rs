//! A recording that comes in whole blocks: it ends before its file becomes too long, and blocks of others can be put between its own.

use std::io;

use anyhow::{Context, bail};
use kvmprof_recording::file::{Account, END_ROOM, Kind, Piece, Reader};

/// Passes on whole blocks up to a limit, and then the account of these blocks, which completes the recording.
#[derive(Debug)]
pub struct LimitedRecording {
    limit: u64,
    reader: Reader,
    /// Received bytes that weren't passed on yet.
    waiting: Vec<u8>,
    /// Bytes that were passed on.
    done: u64,
    /// Bytes of others' blocks that were put between.
    inserted: u64,
    account: Account,
}

/// Blocks from elsewhere.
pub trait MoreBlocks {
    /// Those that have come; the rest of them before the recording's `end`.
    ///
    /// # Errors
    /// They can't be read.
    fn take(&mut self, end: bool) -> io::Result<Vec<u8>>;
}

impl LimitedRecording {
    /// Passes on at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            reader: Reader::default(),
            waiting: Vec::new(),
            done: 0,
            inserted: 0,
            account: Account::default(),
        }
    }

    /// Receives the next `bytes` of the stream and passes on what it can to `output`, with what there is `more`. False after the limit is reached,
    /// and the recording is complete.
    ///
    /// # Errors
    /// The stream is invalid, or `more` can't be read.
    pub fn pass(
        &mut self,
        bytes: &[u8],
        mut more: Option<&mut impl MoreBlocks>,
        output: &mut Vec<u8>,
    ) -> anyhow::Result<bool> {
        self.waiting.extend_from_slice(bytes);
        self.reader.push(bytes);
        loop {
            let block = self.reader.next_block();
            let block = block.context(
                "What comes can't be limited or added to: leave --record-limit and --exits out",
            )?;
            let is_end = block.as_ref().map(|block| block.kind == Some(Kind::End));
            // Not between the file's header and its first block.
            if is_end != Some(false)
                && self.done > 0
                && let Some(more) = &mut more
            {
                let blocks = more.take(is_end.is_some());
                let blocks = blocks.context("Cannot read what kvmprof exits counts")?;
                if !self.has_room(self.done + blocks.len() as u64) {
                    self.end(output)?;
                    return Ok(false);
                }
                self.inserted += blocks.len() as u64;
                output.extend(blocks);
            }
            let Some(block) = block else {
                return Ok(true);
            };
            if is_end == Some(false) && !self.has_room(self.reader.offset()) {
                self.end(output)?;
                return Ok(false);
            }
            if let Some(Piece::Samples(samples)) = block.piece()? {
                samples.read(|ticks, _| self.account.enter(ticks))?;
            }
            let length = usize::try_from(self.reader.offset() - self.done)?;
            if length > self.waiting.len() {
                bail!("The guest's recorder sent less than it said");
            }
            output.extend(self.waiting.drain(..length));
            self.done = self.reader.offset();
            if is_end == Some(true) {
                return Ok(true);
            }
        }
    }

    /// Whether so many bytes of the stream fit, with what was put between, and the account.
    fn has_room(&self, bytes: u64) -> bool {
        bytes.saturating_add(self.inserted) <= self.limit.saturating_sub(END_ROOM)
    }

    fn end(&self, output: &mut Vec<u8>) -> anyhow::Result<()> {
        let block = self.account.to_block();
        output.extend(block.context("The account is too long")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::exits::ExitInterval;
    use kvmprof_recording::file::{
        Block, Recording, RecordingInfo, SamplesEncoder, Unobserved, header,
    };
    use kvmprof_recording::{Sample, Ticks};

    use super::*;

    /// An interval whenever there may be one; it begins at 1 before the recording's end, else at 0.
    struct Exits;

    impl MoreBlocks for Exits {
        fn take(&mut self, end: bool) -> io::Result<Vec<u8>> {
            let interval = ExitInterval {
                begin: end.into(),
                end: 2,
                ..ExitInterval::default()
            };
            Ok(interval.to_block().unwrap())
        }
    }

    /// A recording of 50 blocks with one sample each.
    fn recording() -> Vec<u8> {
        let mut bytes = header().to_vec();
        bytes.extend(RecordingInfo::default().to_block().unwrap());
        let mut account = Account::default();
        for time in 0..50 {
            let sample = Sample {
                time,
                ..Sample::default()
            };
            let ticks = Ticks {
                idle: 2,
                ..sample.into()
            };
            let mut encoder = SamplesEncoder::default();
            encoder.push(&ticks, &[]);
            account.enter(&ticks);
            bytes.extend(Block::encode(Kind::Samples, &encoder.take().bytes).unwrap());
        }
        bytes.extend(account.to_block().unwrap());
        bytes
    }

    #[test]
    fn the_limited_stream_is_a_complete_recording() {
        let whole = recording();
        for (limit, piece) in [
            (1 << 20, 100),
            (END_ROOM + 1500, 25),
            (END_ROOM + 1500, 5000),
        ] {
            let mut limited = LimitedRecording::new(limit);
            let mut output = Vec::new();
            let mut goes_on = true;
            for bytes in whole.chunks(piece) {
                if goes_on {
                    goes_on = limited.pass(bytes, Some(&mut Exits), &mut output).unwrap();
                }
            }
            assert_eq!(goes_on, limit > whole.len() as u64);
            assert!(output.len() as u64 <= limit);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recording");
            std::fs::write(&path, &output).unwrap();
            let recording = Recording::open(&path).unwrap();
            let contents = recording.read(|_, _| {}).unwrap();
            assert_eq!(contents.closed, Some(contents.account));
            assert_eq!(contents.account.samples == 50, goes_on);
            assert!(contents.account.samples > 0);
            let mut last = Vec::new();
            recording
                .exits(&Unobserved, |one| last.push(one.begin))
                .unwrap();
            assert_eq!(last.pop() == Some(1), goes_on);
            assert_eq!(last.is_empty(), piece == 5000);
            assert!(last.iter().all(|begin| *begin == 0), "{last:?}");
        }
    }
}
