//! Profiles and recordings made of rows that have names instead of addresses, as the data set of a fleet has them.
//!
//! The [`Profile`](crate::profile::Profile) of tables and pictures has names. In a recording frames are addresses: there each function gets an address, and
//! the symbols, files and mappings that resolve the address to its name.

mod names;
mod sums;
#[cfg(test)]
mod tests;
mod writer;

pub use sums::RowSums;
pub use writer::{MAX_TICKS, RowsWriter};

use kvmprof_recording::Mode;

/// Ticks that have all of this in common.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The process's name. Processes of one name are one process; in a recording, those of one name and the same labels.
    pub process: &'a str,
    /// The thread's name.
    pub thread: &'a str,
    /// What the vCPU was doing.
    pub mode: Mode,
    /// The functions of the call stack, innermost first; none if there is no stack.
    pub functions: &'a [&'a str],
    /// Their modules.
    pub modules: &'a [&'a str],
    /// The labels of the process, as keys and values.
    pub labels: &'a [(&'a str, &'a str)],
    /// How many ticks.
    pub ticks: u64,
}

impl Row<'_> {
    /// Whether it is ticks of halted vCPUs, and not samples.
    fn is_halted(&self) -> bool {
        self.mode == Mode::Idle && self.functions.is_empty()
    }
}

/// Why rows don't become a profile or a recording.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// Names that are more than recordings have.
    #[error(
        "there are too many names of processes, threads and functions for one picture: choose less"
    )]
    TooManyNames,
    /// Stacks that are more than fit into the limit of memory.
    #[error(
        "there are too many different call stacks for {0} bytes of memory: choose less, or allow more"
    )]
    TooManyStacks(u64),
    /// Ticks, each of which is a sample in a recording.
    #[error(
        "there are more than {MAX_TICKS} ticks, and each is a sample in a recording: choose less"
    )]
    TooManyTicks,
    /// The recording can't be written.
    #[error("cannot write the recording")]
    Write(#[from] std::io::Error),
}
