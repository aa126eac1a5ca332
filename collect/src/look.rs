//! Prints a summary of collected batches (`--once`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use kvmprof_recording::file::Account;

use crate::batch::Batch;

/// Maximum number of functions, and of processes, that are printed.
const ROWS: usize = 20;

/// Sums over batches.
#[derive(Default)]
struct Sums<'a> {
    guests: HashMap<&'a str, (u64, Account)>,
    processes: HashMap<(&'a str, &'a str), u64>,
    functions: HashMap<(&'a str, &'a str), u64>,
    ticks: u64,
}

/// Prints the guests with their ticks, their processes, and the functions of all of them, each with its share of all ticks.
///
/// # Errors
/// Writing to `out` failed.
pub fn print(batches: &[Batch], out: &mut dyn Write) -> io::Result<()> {
    let mut sums = Sums::default();
    for batch in batches {
        sums.add(batch);
    }
    let mut guests: Vec<_> = sums.guests.into_iter().collect();
    guests.sort_by_key(|(name, _)| *name);
    for (name, (ticks, account)) in &guests {
        writeln!(out, "{name}: {account}; {ticks} in the tables")?;
    }
    table("PROCESS", "GUEST", sums.processes, sums.ticks, out)?;
    table("FUNCTION", "MODULE", sums.functions, sums.ticks, out)
}

impl<'a> Sums<'a> {
    fn add(&mut self, batch: &'a Batch) {
        for window in &batch.windows {
            let (ticks, account) = self.guests.entry(&window.guest).or_default();
            *ticks += window.ticks();
            account.merge(&window.account);
            self.ticks += window.ticks();
            for row in &window.rows {
                let process = (batch.name(row.process), window.guest.as_str());
                *self.processes.entry(process).or_default() += row.ticks;
                let frame = batch.frames(row).next();
                let (function, module) = frame.map_or(("[none]", ""), |(_, frame)| {
                    (batch.name(frame.function), batch.name(frame.module))
                });
                *self.functions.entry((function, module)).or_default() += row.ticks;
            }
        }
    }
}

fn table(
    title: &str,
    of: &str,
    rows: HashMap<(&str, &str), u64>,
    all: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(names, ticks)| (Reverse(*ticks), *names));
    writeln!(out, "\n   SHARE  TICKS  {title:<32} {of}")?;
    for ((name, of), ticks) in rows.iter().take(ROWS) {
        // In hundredths of a per cent.
        let share = ticks.saturating_mul(10_000) / all.max(1);
        writeln!(
            out,
            "{:>4}.{:02} % {ticks:>6}  {name:<32} {of}",
            share / 100,
            share % 100
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing::batch;

    #[test]
    fn tables_have_shares_of_all_ticks() {
        let mut out = Vec::new();
        print(&[batch(0, &["a", "b"], 7), batch(10, &["a"], 7)], &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(
            out.starts_with("a: 20 ticks = 14 samples + 6 idle + 0 stolen + 0 lost; 20 in"),
            "{out}"
        );
        assert!(
            out.contains("  46.66 %     14  worker                           a\n"),
            "{out}"
        );
        assert!(
            out.contains("  70.00 %     21  work                             prog\n"),
            "{out}"
        );
    }
}
