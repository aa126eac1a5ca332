//! `kvmprof flamegraph`.

use std::path::PathBuf;

use clap::Args;

use super::output::{check_output, is_packed_name, write_to};
use super::{CommandError, InputArguments};
use kvmprof_report::graph::{Graph, account, title};
use kvmprof_report::profile::folded;
use kvmprof_tools::command_line::{Command, Console, ExitStatus};

/// Draw a recording's stacks as a flame graph
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the recording cannot be read or has nothing of what was chosen, or the file cannot \
    be written; 2 for wrong options.\n\n\
    Example: kvmprof flamegraph out.kvmprof --output out.svg"
)]
pub struct FlamegraphArguments {
    /// The recording; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The SVG file; - is standard output; a name that ends in .gz has it packed by gzip
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Replace the output file even if it is a recording
    #[arg(long)]
    force: bool,
    /// Draw it upside down: the outermost frames at the top
    #[arg(long)]
    icicle: bool,
    #[command(flatten)]
    input: InputArguments,
    /// The title above it
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

impl Command for FlamegraphArguments {
    /// Reads the recording and draws it: the kernel's frames in orange.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        check_output(&self.output, &[&self.file], self.force)?;
        let profile = self.input.open(&self.file, console)?.profile;
        let lines = folded(&profile);
        if lines.is_empty() {
            return Err(CommandError::NoSamples(self.file.clone()).into());
        }
        let graph = Graph {
            title: self.title.clone().unwrap_or_else(|| title(&profile)),
            subtitle: account(&profile),
            icicle: self.icicle,
            differential: false,
        };
        let svg = graph.draw(&lines);
        let svg = svg.map_err(|error| CommandError::Drawing(error.to_string()))?;
        let packed = is_packed_name(&self.output);
        write_to(&self.output, packed, console.output, |out| {
            out.write_all(&svg).map_err(CommandError::Output)
        })?;
        Ok(ExitStatus::SUCCESS)
    }
}
