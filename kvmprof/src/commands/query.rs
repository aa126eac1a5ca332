//! `kvmprof query`, which is a separate program.

use std::ffi::OsString;

use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};

use super::other_program::become_program;

/// Ask the data set of a fleet questions in SQL, or draw what is in it
///
/// Runs kvmprof-query, which is a program of its own, with these options: kvmprof query --help prints its help.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Example: kvmprof query --data /var/lib/kvmprof-collect/parquet 'SELECT host, sum(ticks) FROM samples GROUP BY host'"
)]
pub struct QueryArguments {
    /// Options of kvmprof-query
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<OsString>,
}

impl Command for QueryArguments {
    /// Executes the other program in place of this one.
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let build = "build it in the folder query: cargo build --release";
        match become_program("kvmprof-query", &self.options, build)? {}
    }
}
