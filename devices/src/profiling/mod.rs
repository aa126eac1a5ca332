//! The profiling devices, fed with the ticks of the virtual clock.

mod ledger;
mod tick;

pub use ledger::{ClockLedger, ConsumerLedger};
pub use tick::{COMM_LENGTH, Mode, Sample, Ticks};
