//! `cargo lab demo`: the embedded guest, where the host has no usable KVM.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use kvmprof_lab::Lab;

/// Run `kvmprof demo` in the lab.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// The kvmprof program, statically linked [default: built from this source]
    #[arg(long, value_name = "PATH")]
    kvmprof: Option<PathBuf>,
    /// Options of `kvmprof demo`, such as -- --seconds 10
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

impl DemoArguments {
    /// Runs it; the result is the exit status.
    pub(crate) fn run(self) -> Result<u8> {
        let kvmprof = match self.kvmprof {
            Some(path) => path,
            None => kvmprof_lab::build_program("kvmprof")?,
        };
        let command = ["kvmprof", "demo"].map(str::to_owned);
        let outcome = Lab::new()
            .add(kvmprof, "/lab/kvmprof")
            .command(command.into_iter().chain(self.options))
            .forward_output()
            .run()?;
        Ok(outcome.status)
    }
}
