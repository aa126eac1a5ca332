//! A recording's properties, and its account.

use std::fmt;

use super::{Block, Kind, SampleBlock};
use crate::{SamplingEvent, StackParts, Ticks};
use serde::{Deserialize, Serialize};

/// The value of [`RecordingInfo::clock`] if the host's kernel takes the samples.
pub const KERNEL_CLOCK: &str = "kernel";

/// A recording's properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordingInfo {
    /// The version of the program that made it.
    pub program: String,
    /// The guest kernel's file.
    pub kernel: String,
    /// The number of the guest's vCPUs.
    pub vcpus: u32,
    /// Ticks a second on each vCPU; 0 if an event makes them.
    pub hz: u32,
    /// The event that makes ticks; `None` if the clock makes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<SamplingEvent>,
    /// The number of ticks between two looks at the guest's tasks; `None` if there are no looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u32>,
    /// What drives the clock.
    pub clock: String,
    /// Whether ticks have a random phase.
    pub jitter: bool,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// Its start, in ns since 1970 (CLOCK_REALTIME).
    pub began_ns: u64,
    /// The same moment in ns of CLOCK_MONOTONIC, the clock of samples' times.
    pub began_monotonic_ns: u64,
    /// The parts of stacks that were requested.
    pub stacks: StackParts,
    /// The pids of the processes that were requested; empty for all processes.
    pub pids: Vec<i32>,
}

impl RecordingInfo {
    /// The block for it. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Info, &serde_json::to_vec(self).ok()?)
    }

    /// What makes a tick, in words: `100 Hz`, or `sampled: every exit`.
    pub fn rate(&self) -> String {
        match self.event {
            None => format!("{} Hz", self.hz),
            Some(event) => format!("sampled: {}", event.describe()),
        }
    }

    /// Whether its samples know whether interrupts were on ([`Sample::has_interrupts_off`](crate::Sample::has_interrupts_off)). Those that the host's
    /// kernel takes don't: it doesn't hand RFLAGS over, and they look as if interrupts had always been on.
    pub fn knows_interrupts(&self) -> bool {
        self.clock != KERNEL_CLOCK
    }
}

/// The account of a recording's ticks: `ticks == samples + idle + stolen + lost + ungathered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// All ticks of the clock, of all vCPUs.
    pub ticks: u64,
    /// Ticks with a sample in the recording.
    pub samples: u64,
    /// Ticks counted as idle: the vCPU was halted.
    pub idle: u64,
    /// Ticks at which the host didn't run the vCPU.
    pub stolen: u64,
    /// Ticks without a sample for another reason.
    pub lost: u64,
    /// Ticks of processes that weren't requested.
    #[serde(default)]
    pub ungathered: u64,
}

impl Account {
    /// The block for it. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::End, &serde_json::to_vec(self).ok()?)
    }

    /// Adds `ticks`. Counts saturate.
    pub fn enter(&mut self, ticks: &Ticks) {
        self.add(&SampleBlock {
            samples: ticks.sample.is_some().into(),
            idle: ticks.idle,
            stolen: ticks.stolen,
            lost: ticks.lost,
            ungathered: ticks.ungathered,
            ..SampleBlock::default()
        });
    }

    /// Adds the ticks of a block.
    pub fn add(&mut self, block: &SampleBlock) {
        let parts = [
            (&mut self.samples, block.samples),
            (&mut self.idle, block.idle),
            (&mut self.stolen, block.stolen),
            (&mut self.lost, block.lost),
            (&mut self.ungathered, block.ungathered),
        ];
        for (part, count) in parts {
            *part = part.saturating_add(count);
            self.ticks = self.ticks.saturating_add(count);
        }
    }

    /// Adds the ticks of another account.
    pub fn merge(&mut self, other: &Self) {
        let parts = [
            (&mut self.ticks, other.ticks),
            (&mut self.samples, other.samples),
            (&mut self.idle, other.idle),
            (&mut self.stolen, other.stolen),
            (&mut self.lost, other.lost),
            (&mut self.ungathered, other.ungathered),
        ];
        for (part, count) in parts {
            *part = part.saturating_add(count);
        }
    }

    /// True when every tick is accounted for.
    pub fn balances(&self) -> bool {
        [
            self.samples,
            self.idle,
            self.stolen,
            self.lost,
            self.ungathered,
        ]
        .into_iter()
        .try_fold(0_u64, u64::checked_add)
            == Some(self.ticks)
    }
}

impl fmt::Display for Account {
    /// Writes the account as an equation.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ticks,
            samples,
            idle,
            stolen,
            lost,
            ungathered,
        } = self;
        write!(
            formatter,
            "{ticks} ticks = {samples} samples + {idle} idle + {stolen} stolen + {lost} lost"
        )?;
        if *ungathered > 0 {
            write!(formatter, " + {ungathered} not asked for")?;
        }
        Ok(())
    }
}
