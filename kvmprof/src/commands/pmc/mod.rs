//! `kvmprof pmc`.

mod list;
mod processes;
mod profile;
mod stat;
mod top;

use anyhow::Context;
use clap::{Args, Subcommand};
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_client::Connection;
use kvmprof_recording::counters::Counters;

use list::ListArguments;
use profile::ProfileArguments;
use stat::StatArguments;
use top::TopArguments;

/// Maximum length of a document of counters, in bytes. It has some KiB even with 64 vCPUs, and some 300 bytes for each
/// of 4096 processes.
const MAX_COUNTERS: usize = 4 << 20;

/// Show what kvmprof, KVM and the processor count of a running guest
#[derive(Debug, Args)]
pub struct PmcArguments {
    #[command(subcommand)]
    command: PmcCommand,
}

#[derive(Debug, Subcommand)]
enum PmcCommand {
    /// List the counters, and why this host hasn't got some of them
    List(ListArguments),
    /// Show how much each counter has counted in some time
    Stat(StatArguments),
    /// Show what each process counts, again and again
    Top(TopArguments),
    /// Show which processes and functions cause an event
    Profile(Box<ProfileArguments>),
}

impl Command for PmcArguments {
    /// Executes the chosen command.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        match &self.command {
            PmcCommand::List(arguments) => arguments.execute(console),
            PmcCommand::Stat(arguments) => arguments.execute(console),
            PmcCommand::Top(arguments) => arguments.execute(console),
            PmcCommand::Profile(arguments) => arguments.execute(console),
        }
    }
}

/// The present counters and events of the guest at the other end.
///
/// # Errors
/// There are none, or this program can't read them.
pub fn read_counters(connection: &Connection) -> anyhow::Result<Counters> {
    let document = connection.snapshot(device::PMC, MAX_COUNTERS)?;
    Counters::from_json(&document).context(
        "The guest's counters cannot be read: use the kvmprof of the release that runs the guest",
    )
}

/// `ns` in seconds.
#[expect(clippy::cast_precision_loss, reason = "it is shown with few digits")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
