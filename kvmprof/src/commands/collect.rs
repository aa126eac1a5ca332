//! `kvmprof collect`, which is a separate program.

use std::ffi::OsString;

use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};

use super::other_program::become_program;

/// Collect samples of all guests of this host, always and at a low rate
///
/// Runs kvmprof-collect, which is a program of its own, with these options: kvmprof collect --help prints its help.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Example: kvmprof collect --once --sockets '/run/kvmprof/*.sock'"
)]
pub struct CollectArguments {
    /// Options of kvmprof-collect
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<OsString>,
}

impl Command for CollectArguments {
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        match become_program("kvmprof-collect", &self.options, "build all programs")? {}
    }
}
