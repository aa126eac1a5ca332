//! Writes a recording of rows.

use std::io::Write;

use kvmprof_recording::file::{
    Account, Block, KernelInfo, Kind, RecordingInfo, SamplesEncoder, header,
};
use kvmprof_recording::{Sample, Ticks};

use super::names::Names;
use super::{Row, RowsError};
use crate::random::Random;

/// Maximum number of ticks of a recording that is made of rows.
pub const MAX_TICKS: u64 = 50_000_000;

/// Writes a recording: a sample for each tick of the rows.
///
/// A row has the stretch of time of its ticks. Their times in it are pseudo-random, and the same each time.
#[derive(Debug)]
pub struct RowsWriter<W> {
    out: W,
    names: Names,
    encoder: SamplesEncoder,
    account: Account,
    stretch: Stretch,
    random: Random,
    ticks: u64,
}

/// The rows of a stretch of time.
#[derive(Debug, Default)]
struct Stretch {
    /// Its begin and its length, in ns.
    begin: u64,
    length: u64,
    rows: Vec<(Sample, Vec<u64>)>,
    /// The time of each tick, in 2^-32 of the stretch, and the index of its row.
    ticks: Vec<(u32, u32)>,
    idle: u64,
}

impl<W: Write> RowsWriter<W> {
    /// Starts a recording with the properties `info`, and the guest's `kernel` if there is only one.
    ///
    /// # Errors
    /// It can't be written.
    pub fn new(
        mut out: W,
        info: &RecordingInfo,
        kernel: Option<&KernelInfo>,
    ) -> Result<Self, RowsError> {
        out.write_all(&header())?;
        let mut writer = Self {
            out,
            names: Names::default(),
            encoder: SamplesEncoder::default(),
            account: Account::default(),
            stretch: Stretch::default(),
            random: Random(0),
            ticks: 0,
        };
        writer.put(info.to_block())?;
        if let Some(kernel) = kernel {
            writer.put(kernel.to_block())?;
        }
        Ok(writer)
    }

    fn put(&mut self, block: Option<Vec<u8>>) -> Result<(), RowsError> {
        let block = block.ok_or(RowsError::TooManyNames)?;
        Ok(self.out.write_all(&block)?)
    }

    /// Adds a row whose ticks were in the stretch of `length` ns from `begin` on, on the clock of samples. Rows are added in the order of
    /// their stretches.
    ///
    /// # Errors
    /// There are too many names or ticks, or it can't be written.
    pub fn add(&mut self, row: &Row<'_>, begin: u64, length: u64) -> Result<(), RowsError> {
        self.ticks = self.ticks.saturating_add(row.ticks);
        if self.ticks > MAX_TICKS {
            return Err(RowsError::TooManyTicks);
        }
        if (self.stretch.begin, self.stretch.length) != (begin, length) {
            self.end_stretch()?;
            (self.stretch.begin, self.stretch.length) = (begin, length);
        }
        if row.is_halted() {
            self.stretch.idle += row.ticks;
            return Ok(());
        }
        let labels = self.names.labels(row)?;
        let (mut sample, functions) = self.names.place(row, labels)?;
        let frames = self.names.addresses(sample.pid, &functions)?;
        sample.pc = frames.first().copied().unwrap_or_default();
        let number = u32::try_from(self.stretch.rows.len());
        let number = number.map_err(|_| RowsError::TooManyTicks)?;
        self.stretch.rows.push((sample, frames));
        for _ in 0..row.ticks {
            let when = u32::try_from(self.random.bits() >> 32).unwrap_or_default();
            self.stretch.ticks.push((when, number));
        }
        Ok(())
    }

    /// Writes the samples of the stretch, with its idle ticks between them.
    fn end_stretch(&mut self) -> Result<(), RowsError> {
        let mut stretch = std::mem::take(&mut self.stretch);
        stretch.ticks.sort_unstable();
        let samples = stretch.ticks.len() as u64;
        // Both are at most MAX_TICKS.
        let idle_before = |number: u64| stretch.idle * number / samples.max(1);
        for (number, (when, row)) in (0..).zip(&stretch.ticks) {
            let Some((sample, frames)) = stretch.rows.get(*row as usize) else {
                continue;
            };
            let into = (u128::from(stretch.length) * u128::from(*when)) >> 32;
            let into = u64::try_from(into).unwrap_or_default();
            let ticks = Ticks {
                idle: idle_before(number + 1) - idle_before(number),
                ..Ticks::from(Sample {
                    time: stretch.begin.saturating_add(into),
                    ..*sample
                })
            };
            self.push(&ticks, frames)?;
        }
        if samples == 0 && stretch.idle > 0 {
            let halted = Ticks {
                idle: stretch.idle,
                ..Ticks::default()
            };
            self.push(&halted, &[])?;
        }
        Ok(())
    }

    fn push(&mut self, ticks: &Ticks, frames: &[u64]) -> Result<(), RowsError> {
        self.account.enter(ticks);
        self.encoder.push(ticks, frames);
        if self.encoder.is_full() {
            self.put_samples()?;
        }
        Ok(())
    }

    fn put_samples(&mut self) -> Result<(), RowsError> {
        let block = self.encoder.take();
        self.put(Block::encode(Kind::Samples, &block.bytes))
    }

    /// Writes the last samples, the names and the account. Returns the output, and the account.
    ///
    /// # Errors
    /// It can't be written.
    pub fn finish(mut self) -> Result<(W, Account), RowsError> {
        self.end_stretch()?;
        if !self.encoder.is_empty() {
            self.put_samples()?;
        }
        let names = self.names.blocks()?;
        self.out.write_all(&names)?;
        self.put(self.account.to_block())?;
        self.out.flush()?;
        Ok((self.out, self.account))
    }
}
