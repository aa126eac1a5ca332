//! `cargo lab demo`: the embedded guest, where the host has no usable KVM.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use kvmprof_lab::Lab;

/// The demo's flame graph, unless its options name another file.
const FLAME_GRAPH: &str = "kvmprof-demo.svg";
/// What the demo writes to its current folder comes to this one.
const SCRIPT: &str = "cd \"$LAB_OUT\" && exec kvmprof demo \"$@\"";

/// Run `kvmprof demo` in the lab; the files that it writes come into the current folder.
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
        let command = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned);
        let mut lab = Lab::new().add(kvmprof, "/lab/kvmprof").out(".");
        // The demo tells whether it may replace what is here.
        if Path::new(FLAME_GRAPH).is_file() {
            lab = lab.add(FLAME_GRAPH, &format!("/out/{FLAME_GRAPH}"));
        }
        let outcome = lab
            .command(command.into_iter().chain(self.options))
            .forward_output()
            .run()?;
        Ok(outcome.status)
    }
}
