//! What the programs `kvmprof` and `kvmprof-tools` have in common: the tools as commands, their names
//! as links, and what belongs to an installation.

mod manual;
mod setup;
mod tool;
mod usage;

pub use setup::{Setup, SetupError};
pub use tool::{Tool, ToolError};
pub use usage::{parse, refuse, told_as, usage_error};
