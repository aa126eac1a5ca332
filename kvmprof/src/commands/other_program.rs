//! Commands that are separate programs, which this program finds and executes: `kvmprof collect`, `kvmprof query`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process;

use anyhow::{Context, bail};
use clap::Args;
use kvmprof_cli::child::program;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};

/// The options of another program.
#[derive(Args, Debug)]
struct OtherOptions {
    /// Options of that program
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<OsString>,
}

/// Collect samples of all guests of this host, always and at a low rate
///
/// Runs kvmprof-collect, which is a program of its own, with these options: kvmprof collect --help prints its help.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Example: kvmprof collect --once --sockets '/run/kvmprof/*.sock'"
)]
pub struct CollectArguments {
    #[command(flatten)]
    options: OtherOptions,
}

/// Ask the data set of a fleet questions in SQL, or draw what is in it
///
/// Runs kvmprof-query, which is a program of its own, with these options: kvmprof query --help prints its help.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Example: kvmprof query --data /var/lib/kvmprof-collect/parquet 'SELECT host, sum(ticks) FROM samples GROUP BY host'"
)]
pub struct QueryArguments {
    #[command(flatten)]
    options: OtherOptions,
}

impl Command for CollectArguments {
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let options = &self.options.options;
        match become_program("kvmprof-collect", options, "build all programs")? {}
    }
}

impl Command for QueryArguments {
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let options = &self.options.options;
        let build = "build it in the folder query: cargo build --release";
        match become_program("kvmprof-query", options, build)? {}
    }
}

/// Executes the program `name`, which is in the same folder as this one or in PATH, with these options, in place of this program.
///
/// # Errors
/// The program doesn't exist, or can't be executed. `build` says how to get it without a package.
pub fn become_program(name: &str, options: &[OsString], build: &str) -> anyhow::Result<Infallible> {
    let program = program(name);
    let error = process::Command::new(&program).args(options).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "There is no program {name} beside this one or in PATH: install the package {name}, or {build}"
        );
    }
    Err(error).with_context(|| format!("Cannot run {}", program.display()))
}
