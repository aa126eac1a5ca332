//! What a sample is, and the recordings that samples are kept in.
//!
//! The vocabulary that all other crates share: [`Ticks`] are what the virtual clock counts, or a [`SamplingEvent`] in its place, a [`Sample`] is what one
//! tick captured, and a [`ClockLedger`] or a [`ConsumerLedger`] says what became of every tick. [`mod@file`] is the format of recordings, with its one
//! encoder and its one reader; [`elf`] reads what a recording keeps of the guest's programs; [`status`] is the document that a running guest's ledgers
//! are in.
//!
//! ```
//! use kvmprof_recording::{ClockLedger, Sample, Ticks};
//!
//! // Two idle ticks and a stolen one, then one with a sample.
//! let ticks = Ticks { idle: 2, stolen: 1, sample: Some(Sample::default()), ..Ticks::default() };
//! let mut ledger = ClockLedger::default();
//! ledger.enter(&ticks);
//! assert_eq!((ledger.ticks, ledger.sampled), (4, 1));
//! assert!(ledger.balances());
//! ```
//!
//! A recording is read from its start to its end; samples come with the frames of their stacks:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//! use std::path::Path;
//!
//! use kvmprof_recording::file::Recording;
//!
//! let mut samples: BTreeMap<i32, u64> = BTreeMap::new();
//! let recording = Recording::open(Path::new("out.kvmprof"))?;
//! let contents = recording.read(|ticks, _frames| {
//!     if let Some(sample) = &ticks.sample {
//!         *samples.entry(sample.pid).or_default() += 1;
//!     }
//! })?;
//! println!("{} ticks of {}: {samples:?}", contents.account.ticks, contents.info.kernel);
//! # Ok::<(), kvmprof_recording::file::FileError>(())
//! ```
#![forbid(unsafe_code)]

pub mod counters;
pub mod elf;
mod event;
pub mod exits;
mod fault;
pub mod file;
mod language;
mod ledger;
mod loss;
#[cfg(test)]
#[path = "../../tests/shared/not_run.rs"]
mod not_run;
mod period;
pub mod processes;
mod queue_budget;
mod sample;
pub mod status;
mod sysroot;
pub mod tasks;

pub use event::{EventError, EventKind, SamplingEvent};
pub use fault::{FaultKind, MemoryFault};
pub use kvmprof_abi::pcs::Ledger as ConsumerLedger;
pub use language::{Language, LanguageFrame};
pub use ledger::ClockLedger;
pub use loss::{loss_warning, misleads, without_sample};
pub use period::least_common_multiple;
pub use queue_budget::{QueueBudget, Share};
pub use sample::{
    COMM_LENGTH, DEFAULT_STACK_FRAMES, HOST_FRAMES, IDLE_PID, IPL_MASKED, LockOwner, LockWait,
    MAX_STACK_FRAMES, Mode, Preemption, Sample, StackEnd, StackParts, StackSummary, Ticks, comm_of,
    parse_pid,
};
pub use sysroot::Sysroot;
