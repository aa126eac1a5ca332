//! `kvmprof stalls`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::write_json;
use kvmprof_report::profile::{TableStyle, TimeRange};
use kvmprof_report::stalls::{StallWatcher, Stalls, print};
use serde_json::json;

use super::output_limit::within;
use super::{InputArguments, OutputLimit};

/// Show what held a guest up: interrupts off, waits for locks, and the host
///
/// Five tables of a recording: the longest stretches of samples with interrupts off, and those with preemption off; samples in loops of
/// Linux's kernel that wait for locks or for other vCPUs, and how many of them while the host didn't run another vCPU, which may have
/// held the lock; the locks that were waited for, by their addresses; and the ticks that the host stole, by what the vCPU was last seen in.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the recording cannot be read, has nothing that the options select or was made by events \
    instead of time, or the tables cannot be written; 2 for wrong options.\n\n\
    Example: kvmprof stalls out.kvmprof --time 10:20"
)]
pub struct StallsArguments {
    /// The recording; - is standard input
    #[arg(value_name = "FILE", default_value = "out.kvmprof")]
    file: PathBuf,
    /// Only this time, in seconds from the recording's start; either end may be left open
    #[arg(long, value_name = "A:B", default_value = ":")]
    time: TimeRange,
    /// Maximum number of rows of a table [default: 20; all of a JSON document's]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    #[command(flatten)]
    limit: OutputLimit,
    /// Print a JSON document instead
    #[arg(long)]
    json: bool,
}

/// The version of the JSON document's form. It stays the same when members are added.
const SCHEMA: u32 = 1;

impl Command for StallsArguments {
    /// Reads the recording and prints the tables to standard output.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let mut watcher = StallWatcher::default();
        let input = InputArguments::default().with_time(self.time);
        let profile = input.open_with(&self.file, console, &mut watcher)?.profile;
        if profile.contents.info.event.is_some() {
            bail!(
                "{} was sampled by an event (--event), so that the time between its ticks is unknown: record without --event for this",
                self.file.display()
            );
        }
        let budget = self.limit.budget(profile.length());
        let stalls = Stalls::new(
            &profile,
            watcher,
            most_rows(self.top, USUAL_ROWS, self.json),
            &budget,
        )?;
        let style = TableStyle::for_terminal(console.is_terminal());
        within(&budget, console, |out| {
            if self.json {
                let account = &profile.contents.account;
                let document = json!({ "schema": SCHEMA, "account": account, "stalls": stalls });
                return write_json(out, document);
            }
            print(&profile, &stalls, style, out)
        })
    }
}
