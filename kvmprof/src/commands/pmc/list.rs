//! `kvmprof pmc list`.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use kvmprof_recording::counters::Counters;
use kvmprof_tools::command_line::{Command, Console, ExitStatus, SocketArgs};
use kvmprof_tools::table::{Align, write_table};

use super::read;

/// Options of `kvmprof pmc list`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest at the socket; 2 for wrong options.\n\n\
    Example: kvmprof pmc list --socket /run/guest.sock"
)]
pub struct ListArguments {
    #[command(flatten)]
    socket: SocketArgs,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl Command for ListArguments {
    /// Prints all counters, with what they have counted so far.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let counters = read(&self.socket.connect()?)?;
        let written = if self.json {
            let document = serde_json::to_string(&counters)?;
            writeln!(console.output, "{document}")
        } else {
            write(&counters, console.output)
        };
        written.context("Cannot write the counters")?;
        Ok(ExitStatus::SUCCESS)
    }
}

fn write(counters: &Counters, output: &mut dyn Write) -> std::io::Result<()> {
    let mut rows = Vec::new();
    let mut missing: Vec<(&str, Vec<&str>)> = Vec::new();
    for (number, counter) in counters.counters.iter().enumerate() {
        let total = counter.total().map(|total| total.to_string());
        rows.push([
            number.to_string(),
            counter.name.clone(),
            total.unwrap_or_else(|| "-".to_owned()),
            counter.unit.clone(),
            counter.source.clone(),
            counter.description.clone(),
        ]);
        if let Some(why) = &counter.missing {
            match missing.iter_mut().find(|(known, _)| known == why) {
                Some((_, names)) => names.push(&counter.name),
                None => missing.push((why, vec![&counter.name])),
            }
        }
    }
    let headings = [
        ("NUMBER", Align::Right),
        ("NAME", Align::Left),
        ("COUNT", Align::Right),
        ("", Align::Left),
        ("BY", Align::Left),
        ("WHAT", Align::Left),
    ];
    write_table(output, &headings, &rows)?;
    for (why, names) in missing {
        writeln!(output, "\nNot on this host: {}: {why}", names.join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::counters::Counter;

    use super::*;

    #[test]
    fn what_is_missing_is_said_once_for_each_reason() {
        let counter = |name: &str, missing: Option<&str>| Counter {
            name: name.to_owned(),
            vcpus: vec![3, 4],
            missing: missing.map(str::to_owned),
            ..Counter::default()
        };
        let counters = Counters {
            time: 1,
            counters: vec![
                counter("halts", None),
                counter("cycles", Some("no PMU")),
                counter("branches", Some("no PMU")),
            ],
            processes: None,
        };
        let mut output = Vec::new();
        write(&counters, &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert!(text.contains("0  halts         7"), "{text}");
        assert!(text.contains("1  cycles        -"), "{text}");
        assert!(
            text.ends_with("\nNot on this host: cycles, branches: no PMU\n"),
            "{text}"
        );
    }
}
