//! The profiling devices, fed with the ticks of the virtual clock.

mod ledger;
pub mod pcs;
pub mod prf;
mod tick;

pub use kvmprof_abi::pcs::Ledger as ConsumerLedger;
pub use ledger::ClockLedger;
pub use pcs::{ClockWish, Pcs};
pub use prf::{Prf, Switch};
pub use tick::{
    COMM_LENGTH, IPL_MASKED, MAX_STACK_FRAMES, Mode, Sample, StackEnd, StackSummary, Ticks,
};
