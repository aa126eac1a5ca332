//! `kvmprof pmc list`.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_cli::table::{Align, write_table};
use kvmprof_cli::text::write_json;
use kvmprof_recording::counters::{Counters, Event};
use kvmprof_report::text::visible;

use super::read_counters;
use crate::commands::targets::TargetArgs;

/// Options of `kvmprof pmc list`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest there; 2 for wrong options.\n\n\
    Example: kvmprof pmc list guest"
)]
pub struct ListArguments {
    #[command(flatten)]
    target: TargetArgs,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl Command for ListArguments {
    /// Prints all counters with their present counts.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let counters = read_counters(&self.target.connect_own("pmc list")?)?;
        let written = if self.json {
            let document = serde_json::to_string(&counters)?;
            write_json(console.text(), document)
        } else {
            write(&counters, console.text())
        };
        written.context("Cannot write the counters")?;
        Ok(ExitStatus::SUCCESS)
    }
}

fn write(counters: &Counters, output: &mut dyn Write) -> std::io::Result<()> {
    let mut rows = Vec::new();
    let mut missing = MissingCounters::default();
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
        missing.add(&counter.name, counter.missing.as_deref());
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
    missing.write("Not on this host", output)?;
    let (there, others): (Vec<&Event>, Vec<&Event>) =
        (counters.events.iter()).partition(|event| event.missing.is_none());
    if !there.is_empty() {
        let names: Vec<&str> = there.iter().map(|event| event.name.as_str()).collect();
        let names = visible(&names.join(", "));
        writeln!(
            output,
            "\nEvents that record --event takes samples by: {names}"
        )?;
    }
    let mut missing = MissingCounters::default();
    for event in others {
        missing.add(&event.name, event.missing.as_deref());
    }
    missing.write("No events on this host", output)
}

/// Names of missing counters, grouped by the reasons.
#[derive(Default)]
struct MissingCounters<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> MissingCounters<'a> {
    fn add(&mut self, name: &'a str, why: Option<&'a str>) {
        let Some(why) = why else {
            return;
        };
        match self.0.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name),
            None => self.0.push((why, vec![name])),
        }
    }

    fn write(&self, heading: &str, output: &mut dyn Write) -> std::io::Result<()> {
        for (why, names) in &self.0 {
            let line = format!("{heading}: {}: {why}", names.join(", "));
            writeln!(output, "\n{}", visible(&line))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::counters::Counter;

    use super::*;

    #[test]
    fn missing_counters_are_grouped_by_reason() {
        let counter = |name: &str, missing: Option<&str>| Counter {
            name: name.to_owned(),
            vcpus: vec![3, 4],
            missing: missing.map(str::to_owned),
            ..Counter::default()
        };
        let event = |name: &str, missing: Option<&str>| Event {
            name: name.to_owned(),
            missing: missing.map(str::to_owned),
            ..Event::default()
        };
        let counters = Counters {
            time: 1,
            counters: vec![
                counter("halts", None),
                counter("cycles", Some("no PMU")),
                counter("branches", Some("no PMU")),
            ],
            processes: None,
            events: vec![
                event("exits", None),
                event("halt", Some("no tracefs")),
                event("guest-time", None),
            ],
        };
        let mut output = Vec::new();
        write(&counters, &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert!(text.contains("0  halts         7"), "{text}");
        assert!(text.contains("1  cycles        -"), "{text}");
        assert!(
            text.ends_with(
                "\nNot on this host: cycles, branches: no PMU\n\
                 \nEvents that record --event takes samples by: exits, guest-time\n\
                 \nNo events on this host: halt: no tracefs\n"
            ),
            "{text}"
        );
    }
}
