//! `kvmprof pmc top`.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_recording::counters::Counters;

use super::processes::{Account, Layout, choose, write};
use super::{read_counters, seconds};
use crate::commands::targets::TargetArgs;

/// Options of `kvmprof pmc top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when the user ended it, the tables were printed or the guest ended; 1 when there is no guest at \
    the other end; 2 for wrong options.\n\n\
    Example: kvmprof pmc top guest --event exits,cpu-time"
)]
pub struct TopArguments {
    #[command(flatten)]
    target: TargetArgs,
    /// The counters, by the names that pmc list has, separated by commas; the first one gives the order [default: cpu-time, exits
    /// and others that say what makes them]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    event: Vec<String>,
    /// Time between two tables, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = value::seconds_of_an_hour)]
    interval: Duration,
    /// End after this many tables; if not given, by Ctrl-C
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Maximum number of rows of a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
}

impl Command for TopArguments {
    /// Prints a table of the processes repeatedly, with the counts of each since the previous table.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        let connection = self.target.connect_own("pmc top")?;
        let chosen = choose(&read_counters(&connection)?, &self.event)?;
        let account = Account::begin(&connection, &chosen)?;
        let layout = Layout {
            counters: &chosen,
            rows: self.top,
        };
        let mut before = account.read()?;
        let mut shown = 0;
        while self.count.is_none_or(|count| shown < count) {
            interrupt.wait(Some(self.interval));
            if interrupt.is_raised() {
                break;
            }
            // A guest that has ended has no more counts.
            let Ok(now) = account.read() else { break };
            let cleared = console.clear();
            let written = cleared.and_then(|()| show(&before, &now, layout, console.text()));
            written.context("Cannot write the counters")?;
            before = now;
            shown += 1;
        }
        Ok(ExitStatus::SUCCESS)
    }
}

fn show(
    before: &Counters,
    now: &Counters,
    layout: Layout<'_>,
    output: &mut dyn Write,
) -> std::io::Result<()> {
    let counted = now.since(before);
    writeln!(output, "in the last {:.1} s", seconds(counted.time))?;
    let processes = counted.processes.as_deref().unwrap_or_default();
    write(processes, now, layout, output)?;
    writeln!(output)?;
    output.flush()
}
