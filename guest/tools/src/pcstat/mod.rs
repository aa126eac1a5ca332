//! pcstat: reports what a stream of getpc holds.

mod arguments;
mod json;
mod loss;
mod profile;
mod reader;
mod report;

pub use arguments::Arguments;
pub use json::to_json;
pub use profile::{Mode, Place, ProcessHits, Profile, Tally};
pub use reader::{PcstatError, read_profile};
pub use report::write_report;
