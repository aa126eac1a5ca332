//! What a Linux kernel did while it booted, out of recordings from its first instruction on: phases, and the time of each initcall.
//!
//! Nothing in the guest is changed for it. An initcall is seen by its frame, which is the one that `do_one_initcall` has called
//! (init/main.c); times are as exact as the clock's ticks are close.

mod estimate;
mod initcalls;
mod levels;
mod phases;
mod seen;
mod summary;

pub use estimate::{Comparison, Estimate};
pub use initcalls::{Call, CallKind};
pub use levels::{INITCALL_PREFIX, Levels};
pub use phases::Phase;
pub use summary::{Boot, BootError, ComparedRow, Row, Summary, compare};
