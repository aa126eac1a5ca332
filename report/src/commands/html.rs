//! `kvmprof html`.

use std::path::PathBuf;

use clap::Args;

use super::{CommandError, InputArguments};
use crate::graph::title;
use crate::html::{Timeline, page};

/// Write a recording as a page to look at: timeline, flame graph, tables
///
/// One file that any browser opens from disk; it loads nothing.
#[derive(Debug, Args)]
pub struct HtmlArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The HTML file
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    #[command(flatten)]
    input: InputArguments,
    /// What is written above it
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

impl HtmlArguments {
    /// Reads the recording and writes the page.
    ///
    /// # Errors
    /// The recording can't be read, or the result written.
    pub fn execute(&self) -> Result<(), CommandError> {
        let (recording, profile) = self.input.open(&self.file)?;
        let timeline = Timeline::of(&recording, &profile)?;
        let title = self.title.clone().unwrap_or_else(|| title(&profile));
        super::write(&self.output, page(&profile, &timeline, &title).as_bytes())
    }
}
