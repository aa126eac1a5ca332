//! The profiling devices, fed with the ticks of the virtual clock.

pub mod pcs;
pub mod prf;

pub use pcs::{ClockRequest, Pcs};
pub use prf::{Prf, Switch};
