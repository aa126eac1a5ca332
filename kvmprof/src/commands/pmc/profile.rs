//! `kvmprof pmc profile`.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_recording::{SamplingEvent, StackParts};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::profile::{Grouping, Layout, SortBy, TableStyle, print};

use crate::commands::record::RecordingOptions;
use crate::commands::recordings::{InputArguments, NO_OUTPUT};
use crate::commands::targets::TargetArgs;

/// Samples a running guest by an event, and shows which processes and functions cause it
///
/// It is a recording that isn't kept: kvmprof record --event keeps one, with which there are flame graphs and call stacks.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest there, no such event came, or something else samples the guest; 2 \
    for wrong options.\n\n\
    Example: kvmprof pmc profile exits:10 guest --seconds 5"
)]
pub struct ProfileArguments {
    /// The event, and how many of them there are to a sample, as for kvmprof record --event
    #[arg(value_name = "EVENT:N")]
    event: SamplingEvent,
    #[command(flatten)]
    target: TargetArgs,
    /// How long to sample, in seconds; if not given, until the guest ends or Ctrl-C
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    seconds: Option<Duration>,
    /// Only these processes, by the guest's own pids (0: idle), separated by commas
    #[arg(long, value_name = "PID", value_parser = kvmprof_recording::parse_pid, value_delimiter = ',', allow_negative_numbers = true)]
    pid: Vec<i32>,
    /// Maximum number of rows of a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
}

impl Command for ProfileArguments {
    /// Records to a temporary file, and prints a report of it.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let folder = tempfile::tempdir().context("Cannot make a folder for the samples")?;
        let path = folder.path().join("samples");
        let recording = RecordingOptions {
            record_limit: None,
            target: self.target.clone(),
            seconds: self.seconds,
            stacks: StackParts::BOTH,
            pid: self.pid.clone(),
            event: Some(self.event),
            tasks: None,
            exits: false,
        };
        recording.record(&path, None, None, console)?;
        let profile = InputArguments::default().open(&path, console)?.profile;
        if profile.contents.account.ticks == 0 {
            anyhow::bail!(
                "The guest has made no sample in this time: it takes {} {} to one",
                self.event.period(),
                self.event.kind().plural()
            );
        }
        let layout = Layout {
            tables: [Grouping::Process, Grouping::Function]
                .map(Into::into)
                .into(),
            sort: SortBy::Own,
            top: self.top,
            style: TableStyle::for_terminal(console.is_terminal()),
        };
        let budget = OutputBudget::of_recording(profile.length());
        print(&profile, &layout, &[], &budget, console.text()).context(NO_OUTPUT)?;
        Ok(ExitStatus::SUCCESS)
    }
}
