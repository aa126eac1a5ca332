//! pcstat: reports the contents of a stream of getpc.

mod arguments;
mod json;
mod loss;
mod profile;
mod reader;
mod report;

pub use arguments::Arguments;
pub use json::to_json;
pub use profile::{Mode, ProcessHits, Profile, ProgramCounter, Tally};
pub use reader::{PcstatError, read_profile};
pub use report::write_report;
