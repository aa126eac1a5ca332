//! A recording that ends before its file becomes too long.

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
    account: Account,
}

impl LimitedRecording {
    /// Passes on at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            reader: Reader::default(),
            waiting: Vec::new(),
            done: 0,
            account: Account::default(),
        }
    }

    /// Receives the next `bytes` of the stream and passes on what it can to `output`. False after the limit is reached,
    /// and the recording is complete.
    ///
    /// # Errors
    /// The stream is invalid, or writing failed.
    pub fn pass(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> anyhow::Result<bool> {
        self.waiting.extend_from_slice(bytes);
        self.reader.push(bytes);
        loop {
            let block = self.reader.next_block();
            let block = block.context("What comes can't be limited: leave --record-limit out")?;
            let Some(block) = block else {
                return Ok(true);
            };
            let is_end = block.kind == Some(Kind::End);
            if !is_end && self.reader.offset() > self.limit.saturating_sub(END_ROOM) {
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
        }
    }

    fn end(&self, output: &mut Vec<u8>) -> anyhow::Result<()> {
        let block = self.account.to_block();
        output.extend(block.context("The account is too long")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::file::{Block, Recording, RecordingInfo, SamplesEncoder, header};
    use kvmprof_recording::{Sample, Ticks};

    use super::*;

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
            (END_ROOM + 1500, 1),
            (END_ROOM + 1500, 5000),
        ] {
            let mut limited = LimitedRecording::new(limit);
            let mut output = Vec::new();
            let mut goes_on = true;
            for bytes in whole.chunks(piece) {
                if goes_on {
                    goes_on = limited.pass(bytes, &mut output).unwrap();
                }
            }
            assert_eq!(goes_on, limit > whole.len() as u64);
            assert!(output.len() as u64 <= limit);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recording");
            std::fs::write(&path, &output).unwrap();
            let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
            assert_eq!(contents.closed, Some(contents.account));
            assert_eq!(contents.account.samples == 50, goes_on);
            assert!(contents.account.samples > 0);
        }
    }
}
