//! `kvmprof html`.

use std::path::PathBuf;

use clap::Args;

use super::output::{check_output, is_packed_name, write_to};
use super::{CommandError, InputArguments};
use kvmprof_report::graph::title;
use kvmprof_report::html::{Timeline, page};
use kvmprof_tools::command_line::{Command, Console, ExitStatus};

/// Write a recording as an HTML page: timeline, flame graph, tables
///
/// One file that any browser opens from disk; it loads nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the recording cannot be read or has nothing of what was chosen, or the file cannot \
    be written; 2 for wrong options.\n\n\
    Example: kvmprof html out.kvmprof --output out.html"
)]
pub struct HtmlArguments {
    /// The recording; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The HTML file; - is standard output; a name that ends in .gz has it packed by gzip
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Replace the output file even if it is a recording
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    input: InputArguments,
    /// The title above it
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

impl Command for HtmlArguments {
    /// Reads the recording and writes the page.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        check_output(&self.output, &[&self.file], self.force)?;
        let input = self.input.open(&self.file, console)?;
        let profile = &input.profile;
        let timeline = Timeline::new(&input.recording, profile).map_err(CommandError::from)?;
        let title = self.title.clone().unwrap_or_else(|| title(profile));
        let page = page(profile, &timeline, &title);
        let packed = is_packed_name(&self.output);
        write_to(&self.output, packed, console.output, |out| {
            out.write_all(page.as_bytes()).map_err(CommandError::Output)
        })?;
        Ok(ExitStatus::SUCCESS)
    }
}
