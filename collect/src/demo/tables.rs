//! The tables that the demonstration prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use kvmprof_cli::table::{Align, percent, write_table};
use serde::Deserialize;

use super::ask::Row;
use super::prometheus::{Process, QUERY};

/// Maximum number of functions that are printed.
const FUNCTIONS: usize = 15;

/// A guest's own counts of its time (`kvmprof demo --truth`).
#[derive(Clone, Debug, Deserialize)]
pub struct Truth {
    rows: Vec<OwnCount>,
}

/// A part of the guest's time.
#[derive(Clone, Debug, Deserialize)]
struct OwnCount {
    mode: String,
    name: String,
    /// The kernel's functions that belong to it.
    functions: Vec<String>,
    cycles: u64,
}

impl Truth {
    /// Reads it from the file at `path`.
    ///
    /// # Errors
    /// There is no such file, or it has another format.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let failed = || format!("Cannot read a guest's own counts: {}", path.display());
        let document = fs::read(path).with_context(failed)?;
        serde_json::from_slice(&document).with_context(failed)
    }

    /// The part to which samples belong: of a program by its name, of the kernel by the function, or the kernel's part without functions.
    fn part_of(&self, row: &Row) -> Option<usize> {
        let is = |own: &OwnCount| {
            own.mode == row.mode
                && match own.mode.as_str() {
                    "user" => own.name == row.process,
                    "kernel" => own.functions.contains(&row.function),
                    _ => true,
                }
        };
        let rest = |own: &OwnCount| own.mode == "kernel" && own.functions.is_empty();
        let found = self.rows.iter().position(is);
        found.or_else(|| {
            let rest = || self.rows.iter().position(rest);
            (row.mode == "kernel").then(rest)?
        })
    }
}

/// Prints the functions of all guests with the most time, without idle.
pub fn functions(rows: &[Row], output: &mut dyn Write) -> io::Result<()> {
    let mut sums: BTreeMap<&str, (u64, BTreeSet<&str>)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.mode != "idle") {
        let (ticks, guests) = sums.entry(&row.function).or_default();
        *ticks = ticks.saturating_add(row.ticks);
        guests.insert(&row.guest);
    }
    let all = sums.values().map(|(ticks, _)| ticks).sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(name, (ticks, _))| (std::cmp::Reverse(*ticks), *name));
    let sums = sums.into_iter().take(FUNCTIONS);
    let cells = sums.map(|(function, (ticks, guests))| {
        let guests: Vec<&str> = guests.into_iter().collect();
        [
            percent(ticks, all),
            ticks.to_string(),
            function.to_owned(),
            guests.join(", "),
        ]
    });
    let headings = [
        ("SHARE", Align::Right),
        ("TICKS", Align::Right),
        ("FUNCTION", Align::Left),
        ("GUESTS", Align::Left),
    ];
    write_table(output, &headings, &cells.collect::<Vec<_>>())
}

/// Prints the parts of a guest's time as the guest has counted them and as they were collected.
pub fn compare(guest: &str, truth: &Truth, rows: &[Row], output: &mut dyn Write) -> io::Result<()> {
    let mut ticks = vec![0_u64; truth.rows.len()];
    let (mut all, mut others) = (0_u64, 0_u64);
    for row in rows.iter().filter(|row| row.guest == guest) {
        all = all.saturating_add(row.ticks);
        let part = truth.part_of(row).and_then(|part| ticks.get_mut(part));
        let sum = part.unwrap_or(&mut others);
        *sum = sum.saturating_add(row.ticks);
    }
    let cycles = truth.rows.iter().map(|own| own.cycles).sum();
    let mut cells: Vec<[String; 5]> = (truth.rows.iter().zip(ticks))
        .map(|(own, ticks)| {
            [
                own.mode.clone(),
                own.name.clone(),
                percent(own.cycles, cycles),
                percent(ticks, all),
                ticks.to_string(),
            ]
        })
        .collect();
    if others > 0 {
        let unknown = [String::new(), "unknown".to_owned(), percent(0, cycles)];
        let [mode, name, own] = unknown;
        cells.push([mode, name, own, percent(others, all), others.to_string()]);
    }
    writeln!(
        output,
        "\nGuest {guest}, as it has counted its own time, and as it was collected:\n"
    )?;
    let headings = [
        ("MODE", Align::Left),
        ("NAME", Align::Left),
        ("COUNTED", Align::Right),
        ("COLLECTED", Align::Right),
        ("TICKS", Align::Right),
    ];
    write_table(output, &headings, &cells)
}

/// Prints the answer of Prometheus.
pub fn processes(processes: &[Process], output: &mut dyn Write) -> io::Result<()> {
    writeln!(
        output,
        "\nProcesses, by Prometheus, up to its last look:\n\n  {QUERY}\n"
    )?;
    let cells = processes.iter().map(|process| {
        [
            process.ticks.to_string(),
            process.guest.clone(),
            process.process.clone(),
        ]
    });
    let headings = [
        ("TICKS", Align::Right),
        ("GUEST", Align::Left),
        ("PROCESS", Align::Left),
    ];
    write_table(output, &headings, &cells.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(function: &str, guest: &str, process: &str, mode: &str, ticks: u64) -> Row {
        Row {
            function: function.to_owned(),
            guest: guest.to_owned(),
            process: process.to_owned(),
            mode: mode.to_owned(),
            ticks,
        }
    }

    fn truth() -> Truth {
        let own = |mode: &str, name: &str, functions: &[&str], cycles| OwnCount {
            mode: mode.to_owned(),
            name: name.to_owned(),
            functions: functions.iter().copied().map(str::to_owned).collect(),
            cycles,
        };
        Truth {
            rows: vec![
                own("user", "weaver", &[], 500),
                own("kernel", "system call", &["compute"], 300),
                own("kernel", "switching", &[], 100),
                own("idle", "idle", &[], 100),
            ],
        }
    }

    #[test]
    fn each_share_is_shown_with_the_guests_own_count() {
        let rows = [
            row("weave", "one", "weaver", "user", 48),
            row("compute", "one", "weaver", "kernel", 30),
            row("entry", "one", "weaver", "kernel", 10),
            row("", "one", "idle", "idle", 10),
            row("weave", "one", "stranger", "user", 2),
            row("weave", "two", "weaver", "user", 900),
        ];
        let mut output = Vec::new();
        compare("one", &truth(), &rows, &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        let lines: Vec<String> = text
            .lines()
            .skip(3)
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "MODE NAME COUNTED COLLECTED TICKS",
                "user weaver 50.0 % 48.0 % 48",
                "kernel system call 30.0 % 30.0 % 30",
                "kernel switching 10.0 % 10.0 % 10",
                "idle idle 10.0 % 10.0 % 10",
                "unknown 0.0 % 2.0 % 2",
            ]
        );
        let mut output = Vec::new();
        functions(&rows, &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert!(
            text.contains("96.0 %    950  weave     one, two\n"),
            "{text}"
        );
    }
}
