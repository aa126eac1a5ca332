//! The phases of a Linux kernel's boot and the time of each initcall, from recordings that begin with its first instruction.
//!
//! The guest is not changed. An initcall is recognized by its frame, which is the one that `do_one_initcall` has called (init/main.c).
//! The distance of the clock's ticks limits the precision of times.

mod estimate;
mod initcalls;
mod levels;
mod phases;
mod samples;
#[cfg(test)]
mod simulated;
mod summary;

pub use estimate::{Comparison, Estimate};
pub use initcalls::{Call, CallKind};
pub use levels::{INITCALL_PREFIX, Levels};
pub use phases::Phase;
pub use summary::{Boot, BootError, ComparedRow, Row, Summary, compare};
