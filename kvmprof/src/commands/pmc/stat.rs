//! `kvmprof pmc stat`.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_cli::table::{Align, write_table};
use kvmprof_cli::text::write_json;
use kvmprof_recording::counters::Counters;

use super::processes::{Account, Layout, choose, write};
use super::{read_counters, seconds};
use crate::commands::targets::TargetArgs;

/// Options of `kvmprof pmc stat`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest there, or it ends meanwhile; 2 for wrong options.\n\n\
    Example: kvmprof pmc stat guest --seconds 5"
)]
pub struct StatArguments {
    #[command(flatten)]
    target: TargetArgs,
    /// How long to count, in seconds; if not given, until Ctrl-C
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    seconds: Option<Duration>,
    /// Show only these counters, by the names that pmc list has, separated by commas
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    event: Vec<String>,
    /// Show each vCPU by itself, not only all of them together
    #[arg(long)]
    per_vcpu: bool,
    /// Show what was counted of each process
    #[arg(long, conflicts_with = "per_vcpu")]
    processes: bool,
    /// Show what was counted of these processes, by the guest's own pids (0: idle), separated by commas
    #[arg(long, value_name = "PID", value_parser = kvmprof_recording::parse_pid, value_delimiter = ',', allow_negative_numbers = true, conflicts_with = "per_vcpu")]
    pid: Vec<i32>,
    /// With --processes: the most rows of the table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl Command for StatArguments {
    /// Prints the counts between two points in time.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        let connection = self.target.connect_own("pmc stat")?;
        let mut before = read_counters(&connection)?;
        let chosen = choose(&before, &self.event)?;
        let account = (self.processes || !self.pid.is_empty())
            .then(|| Account::begin(&connection, &chosen))
            .transpose()?;
        if let Some(account) = &account {
            before = account.read()?;
        }
        interrupt.wait(self.seconds);
        let after = match &account {
            Some(account) => account.read(),
            None => read_counters(&connection),
        };
        let after = after.context("The guest has ended meanwhile")?;
        let mut counted = after.since(&before);
        if !self.pid.is_empty()
            && let Some(processes) = &mut counted.processes
        {
            processes.retain(|process| self.pid.contains(&process.pid));
        }
        if account.is_some() && !self.json {
            let layout = Layout {
                counters: &chosen,
                rows: self.top,
            };
            let processes = counted.processes.as_deref().unwrap_or_default();
            let written = write(processes, &after, layout, console.text())
                .and_then(|()| writeln!(console.text(), "\nin {:.3} s", seconds(counted.time)));
            written.context("Cannot write the counters")?;
            return Ok(ExitStatus::SUCCESS);
        }
        if !self.event.is_empty() && account.is_none() {
            counted
                .counters
                .retain(|counter| self.event.contains(&counter.name));
        }
        let written = if self.json {
            let document = serde_json::to_string(&counted)?;
            write_json(console.text(), document)
        } else {
            self.write(&counted, console.text())
        };
        written.context("Cannot write the counters")?;
        Ok(ExitStatus::SUCCESS)
    }
}

impl StatArguments {
    fn write(&self, counted: &Counters, output: &mut dyn Write) -> std::io::Result<()> {
        let mut rows = Vec::new();
        for counter in &counted.counters {
            let Some(total) = counter.total() else {
                continue;
            };
            let row = |name: String, count| {
                [
                    name,
                    count_in(count, &counter.unit),
                    rate(count, counted.time),
                ]
            };
            rows.push(row(counter.name.clone(), total));
            if self.per_vcpu {
                let vcpus = counter.vcpus.iter().enumerate();
                rows.extend(vcpus.map(|(vcpu, count)| row(format!("  vCPU {vcpu}"), *count)));
            }
        }
        let headings = [
            ("NAME", Align::Left),
            ("COUNT", Align::Right),
            ("A SECOND", Align::Right),
        ];
        write_table(output, &headings, &rows)?;
        writeln!(output, "\nin {:.3} s", seconds(counted.time))
    }
}

fn count_in(count: u64, unit: &str) -> String {
    if unit.is_empty() {
        count.to_string()
    } else {
        format!("{count} {unit}")
    }
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with few digits")]
fn rate(count: u64, time: u64) -> String {
    if time == 0 {
        return "-".to_owned();
    }
    format!("{:.0}", count as f64 / seconds(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_use_the_time_between_the_snapshots() {
        assert_eq!(rate(500, 2_000_000_000), "250");
        assert_eq!(rate(1, 0), "-");
        assert_eq!(count_in(5, "ns"), "5 ns");
    }
}
