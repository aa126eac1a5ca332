//! Commands that are separate programs, which this program finds and executes.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

/// Executes `program`, which is in the same folder as this one or in PATH, with these options, in place of this program.
///
/// # Errors
/// The program doesn't exist, or can't be executed. `build` says how to get it without a package.
pub fn become_program(name: &str, options: &[OsString], build: &str) -> anyhow::Result<Infallible> {
    let beside = env::current_exe().ok();
    let beside = beside.map(|program| program.with_file_name(name));
    let program = beside.filter(|program| program.is_file());
    let program = program.unwrap_or_else(|| PathBuf::from(name));
    let error = Command::new(&program).args(options).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "There is no program {name} beside this one or in PATH: install the package {name}, or {build}"
        );
    }
    Err(error).with_context(|| format!("Cannot run {}", program.display()))
}
