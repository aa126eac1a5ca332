//! `kvmprof flamegraph`.

use std::path::PathBuf;

use clap::Args;

use super::{CommandError, InputArguments};
use crate::graph::{Graph, account, title};
use crate::profile::folded;

/// Draw a recording's stacks as a flame graph
#[derive(Debug, Args)]
pub struct FlamegraphArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The SVG file
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Let it hang from the top, outermost frames first
    #[arg(long)]
    icicle: bool,
    #[command(flatten)]
    input: InputArguments,
    /// What is written above it
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

impl FlamegraphArguments {
    /// Reads the recording and draws it: the kernel's frames in orange.
    ///
    /// # Errors
    /// The recording can't be read, or the result written, or there is nothing to draw.
    pub fn execute(&self) -> Result<(), CommandError> {
        let (_, profile) = self.input.open(&self.file)?;
        let lines = folded(&profile);
        if lines.is_empty() {
            return Err(CommandError::NoSamples(self.file.clone()));
        }
        let graph = Graph {
            title: self.title.clone().unwrap_or_else(|| title(&profile)),
            subtitle: account(&profile),
            icicle: self.icicle,
            differential: false,
        };
        let svg = graph
            .draw(&lines)
            .map_err(|error| CommandError::Drawing(error.to_string()))?;
        super::write(&self.output, &svg)
    }
}
