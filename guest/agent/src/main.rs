//! The program `pcsd`.

use std::process::ExitCode;

use clap::Parser;
use kvmprof_agent::cli::{Arguments, run};

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // The whole chain of causes on one line.
            log::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
