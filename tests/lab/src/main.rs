//! `cargo lab`: a machine with a complete KVM in emulation.

mod cli;
mod debian;
mod demo;
mod limits;
mod linux;

use std::process::ExitCode;

use clap::Parser;
use kvmprof_lab::LabError;

/// The status that `timeout(1)` uses, too.
const STATUS_TIMEOUT: u8 = 124;
/// The status that `env(1)`, `timeout(1)` and others use, too, if they failed themselves and not the command.
const STATUS_LAB_FAILED: u8 = 125;

fn main() -> ExitCode {
    match cli::Arguments::parse().run() {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("lab: {error:#}");
            match error.downcast_ref() {
                Some(LabError::Timeout { .. }) => ExitCode::from(STATUS_TIMEOUT),
                _ => ExitCode::from(STATUS_LAB_FAILED),
            }
        }
    }
}
