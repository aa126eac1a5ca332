//! The commands that `kvmprof` and `kvmprof-tools` share: the tools, and the commands for an installation.

mod manual;
mod setup;
mod tool;

pub use setup::{Setup, SetupError};
pub use tool::Tool;
