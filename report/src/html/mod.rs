//! A recording as one self-contained HTML page, in which people filter, search and compare.
//!
//! The page has the recording's stacks merged by bin of time, process, thread, vCPU and mode, where its tasks waited, and why its vCPUs exited; its script
//! computes everything that it shows from them. Its size is bounded for any recording: there is a maximum number of bins, threads, frames,
//! counts, waits and exits, and the rest is counted together, so that sums stay exact. A live page loads itself again and again, while the guest is being recorded.

mod calls;
mod code;
mod data;
mod exits;
mod marks;
mod merged;
mod pack;
mod page;
mod properties;
mod waits;

pub use crate::model::Counts;
pub use exits::Exits;
#[cfg(test)]
pub(crate) use merged::Merged;
pub use page::{comparison_page, counted, live_page, page, page_of};
pub use waits::Waits;

/// What a page has beside ticks.
pub type BesideTicks = (Waits, Exits);
