//! The profiling devices, fed with the ticks of the virtual clock.

mod ledger;
pub mod pcs;
mod tick;

pub use kvmprof_abi::pcs::Ledger as ConsumerLedger;
pub use ledger::ClockLedger;
pub use pcs::{ClockWish, Pcs};
pub use tick::{COMM_LENGTH, Mode, Sample, Ticks};
