//! The commands that both programs, `kvmprof` and `kvmprof-tools`, have: the tools, and those for an installation.

mod manual;
mod setup;
mod tool;

pub use setup::{Setup, SetupError};
pub use tool::Tool;
