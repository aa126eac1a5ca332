//! pcstat: reports the contents of a stream of getpc.
//!
//! It has tables of its own, by [`kvmprof_cli::table`], and doesn't use `kvmprof-report`, which takes a recording: a stream of pcs has neither
//! the kernel's symbols nor the threads that a recording needs. It also runs in guests, where the libraries of reports (flame graphs,
//! protobuf, terminals) would make its program several times as large.

mod arguments;
mod json;
mod loss;
mod profile;
mod reader;
mod report;

pub use arguments::Arguments;
pub use json::to_json;
pub use profile::{ProcessHits, Profile, ProgramCounter, Tally};
pub use reader::{PcstatError, read_profile};
pub use report::write_report;
