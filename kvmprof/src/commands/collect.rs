//! `kvmprof collect`: a program of its own, which this one only looks for.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process;

use anyhow::anyhow;
use clap::Args;
use kvmprof_tools::command_line::{Command, Console, ExitStatus};

/// The program, beside this one or in PATH.
const PROGRAM: &str = "kvmprof-collect";

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
        Err(become_collector(&self.options))
    }
}

/// Becomes the other program, with these options. Returns if that fails, with the reason.
pub fn become_collector(options: &[OsString]) -> anyhow::Error {
    let beside = env::current_exe().ok();
    let beside = beside.map(|program| program.with_file_name(PROGRAM));
    let program = beside.filter(|program| program.is_file());
    let program = program.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = process::Command::new(&program).args(options).exec();
    if error.kind() == ErrorKind::NotFound {
        return anyhow!(
            "There is no program {PROGRAM} beside this one or in PATH: install the package {PROGRAM}, or build all programs"
        );
    }
    anyhow!(error).context(format!("Cannot run {}", program.display()))
}
