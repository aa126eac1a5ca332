//! Makes a profile of rows.

use std::path::Path;
use std::rc::Rc;

use kvmprof_recording::file::{Account, Block, Kind, Recording, RecordingInfo, Unobserved, header};
use kvmprof_recording::{Sample, Ticks};

use super::names::Names;
use super::{Row, RowsError};
use crate::model::{Limits, Sums};
use crate::profile::{Profile, Selection};
use crate::symbolize::{ProcessState, Resolver};

/// Sums rows up.
#[derive(Debug)]
pub struct RowSums {
    names: Names,
    rows: Vec<Sum>,
    idle: u64,
    budget: u64,
    left: u64,
}

/// A row: its sample, the frames of its stack, how many ticks.
#[derive(Debug)]
struct Sum {
    sample: Sample,
    frames: Vec<u64>,
    ticks: u64,
}

impl RowSums {
    /// No rows yet. Their stacks can take `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self {
            names: Names::default(),
            rows: Vec::new(),
            idle: 0,
            budget,
            left: budget,
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// There are too many names or stacks.
    pub fn add(&mut self, row: &Row<'_>) -> Result<(), RowsError> {
        if row.ticks == 0 {
            return Ok(());
        }
        if row.is_halted() {
            self.idle = self.idle.saturating_add(row.ticks);
            return Ok(());
        }
        let (sample, frames) = self.names.place(row)?;
        // Stacks are kept twice: here, and in the profile.
        let size = 2 * (size_of::<Sum>() + size_of_val(frames.as_slice())) as u64;
        let left = self.left.checked_sub(size);
        self.left = left.ok_or(RowsError::TooManyStacks(self.budget))?;
        self.rows.push(Sum {
            sample,
            frames,
            ticks: row.ticks,
        });
        Ok(())
    }

    /// The profile, as of a recording with the properties `info`.
    ///
    /// # Errors
    /// There are too many names.
    pub fn into_profile(self, info: &RecordingInfo) -> Result<Profile, RowsError> {
        let json = serde_json::to_vec(info).unwrap_or_default();
        let info = Block::encode(Kind::Info, &json).ok_or(RowsError::TooManyNames)?;
        let bytes = [header().as_slice(), &info, &self.names.blocks()?].concat();
        let mut contents = Recording::from_bytes(Path::new("rows"), bytes)?.contents()?;
        let resolver = Resolver::from_contents(&contents);
        let mut sums = Sums::new(Limits::NONE);
        let mut account = Account::default();
        let halted = Ticks {
            idle: self.idle,
            ..Ticks::default()
        };
        sums.add(&halted, &[], ProcessState::default());
        account.enter(&halted);
        for Sum {
            sample,
            frames,
            ticks,
        } in self.rows
        {
            let sampled = Ticks {
                sample: Some(sample),
                ..Ticks::default()
            };
            let state = resolver.state_of(&sample).state;
            sums.add_alike(&sampled, &frames, state, ticks);
            account.samples = account.samples.saturating_add(ticks);
            account.ticks = account.ticks.saturating_add(ticks);
        }
        contents.account = account;
        contents.closed = Some(account);
        let (resolver, all) = (Rc::new(resolver), Selection::default());
        Ok(sums.into_profile(contents, resolver, all, &Unobserved))
    }
}
