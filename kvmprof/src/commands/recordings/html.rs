//! `kvmprof html`.

use clap::Args;

use super::CommandError;
use super::picture::PictureArguments;
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
    #[command(flatten)]
    picture: PictureArguments,
}

impl Command for HtmlArguments {
    /// Reads the recording and writes the page.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let input = self.picture.open(console)?;
        let profile = &input.profile;
        let timeline = Timeline::new(&input.recording, profile).map_err(CommandError::from)?;
        let page = page(profile, &timeline, &self.picture.title(profile));
        self.picture.write(page.as_bytes(), console)?;
        Ok(ExitStatus::SUCCESS)
    }
}
