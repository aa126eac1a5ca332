//! `cargo lab demo`: the embedded guest, where the host has no usable KVM.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kvmprof_lab::Lab;

use crate::limits::LimitArguments;

/// The demo's flame graph, unless its options name another file.
const FLAME_GRAPH: &str = "kvmprof-demo.svg";
/// Runs the demo in the output folder, from which its files come into the host's current folder.
const SCRIPT: &str = "cd \"$LAB_OUT\" && exec kvmprof demo \"$@\"";

/// Run `kvmprof demo` in the lab; the files that it writes come into the current folder.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// The kvmprof program, statically linked [default: built from this source]
    #[arg(long, value_name = "PATH")]
    kvmprof: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitArguments,
    /// Options of `kvmprof demo`, such as -- --seconds 10
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

impl DemoArguments {
    /// Runs the demo in this machine. Returns the exit status.
    pub(crate) fn run(self, lab: Lab) -> Result<u8> {
        let kvmprof = match self.kvmprof {
            Some(path) => path,
            None => kvmprof_lab::build_program("kvmprof")?,
        };
        eprintln!(
            "lab: running the demo in an emulated machine: nothing comes until it has started, for a minute or two"
        );
        let command = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned);
        let mut lab = lab.add(kvmprof, "/lab/kvmprof").out(".");
        // The demo itself decides whether it may replace this file.
        if Path::new(FLAME_GRAPH).is_file() {
            lab = lab.add(FLAME_GRAPH, &format!("/out/{FLAME_GRAPH}"));
        }
        let outcome = self
            .limit
            .apply(lab, sampling_time(&self.options))
            .command(command.into_iter().chain(self.options))
            .forward_output()
            .run()?;
        Ok(outcome.status)
    }
}

/// For how long the demo samples silently, by its options. The demo itself reports invalid ones.
fn sampling_time(options: &[String]) -> Duration {
    const OPTION: &str = "--seconds";
    let words = options.iter().zip(options.iter().skip(1));
    let apart = words
        .filter(|(option, _)| *option == OPTION)
        .map(|(_, value)| value.as_str());
    let joined = options
        .iter()
        .filter_map(|option| option.strip_prefix(OPTION)?.strip_prefix('='));
    let seconds = apart
        .chain(joined)
        .filter_map(|value| value.parse::<u32>().ok())
        .max();
    Duration::from_secs(seconds.unwrap_or(0).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_seconds_are_found() {
        for (options, seconds) in [
            (&["--cpus", "2"][..], 0),
            (&["--seconds", "10", "--cpus", "2"], 10),
            (&["--seconds=700"], 700),
            (&["--seconds"], 0),
            (&["--seconds", "many"], 0),
        ] {
            let options: Vec<String> = options.iter().copied().map(str::to_owned).collect();
            assert_eq!(sampling_time(&options).as_secs(), seconds, "{options:?}");
        }
    }
}
