//! Prints the shares between two records for prfpr.
//!
//! The table has the layout of the original prfpr, and doesn't come from `kvmprof-report`: a record of prf has counters by address and no
//! samples, so that no recording can be made of it.

use std::collections::HashMap;
use std::io::{self, Write};

use super::local_time::LocalTime;
use super::log::Record;
use crate::symbols::Symbol;
use kvmprof_cli::table::{Align, Spacing, write_rows};

/// The spacing of the original prfpr.
const SPACING: Spacing = Spacing {
    margin: "",
    gap: " ",
};

/// The names of addresses.
#[derive(Debug, Default)]
pub struct Names(Vec<(u64, String)>);

impl Names {
    /// The names of `symbols` with `slide` added (modulo 2^64) to their addresses. Of several symbols at one address
    /// the first global one counts, else the first.
    pub fn new(symbols: Vec<Symbol>, slide: u64) -> Self {
        let mut best: HashMap<u64, (bool, String)> = HashMap::new();
        for symbol in symbols {
            let address = symbol.address.wrapping_add(slide);
            let known = best.get(&address);
            // An end is at the address of a function, if two lists are one.
            let is_better = |(global, name): &(bool, String)| {
                !symbol.name.is_empty() && (name.is_empty() || symbol.global && !global)
            };
            if known.is_none_or(is_better) {
                best.insert(address, (symbol.global, symbol.name));
            }
        }
        let mut names: Vec<_> = best
            .into_iter()
            .map(|(address, (_, name))| (address, name))
            .collect();
        names.sort_unstable();
        Self(names)
    }

    /// The name for `address`: a symbol's name, `name+0x10` between two symbols, a number below all symbols and where no symbol is.
    pub fn name_at(&self, address: u64) -> String {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        match after.checked_sub(1).and_then(|at| self.0.get(at)) {
            Some((_, name)) if name.is_empty() => format!("{address:#x}"),
            Some((start, name)) if *start == address => name.clone(),
            Some((start, name)) if *start != 0 => format!("{name}+{:#x}", address - start),
            _ => format!("{address:#x}"),
        }
    }
}

/// Prints the interval between two records of a log with this table of `addresses`: two times, an empty line, and a row
/// for each counter with a share greater than `cutoff` percent. Counters that have decreased began at 0 in between.
///
/// # Errors
/// Writing to `output` failed.
pub fn write_interval(
    output: &mut dyn Write,
    addresses: &[u64],
    names: &Names,
    before: &Record,
    after: &Record,
    cutoff: f64,
) -> io::Result<()> {
    writeln!(output, "{}", time(before.time))?;
    writeln!(output, "{}", time(after.time))?;
    writeln!(output)?;
    let ticks = ticks_between(before, after);
    let all: u128 = ticks.iter().map(|count| u128::from(*count)).sum();
    if all == 0 {
        return writeln!(output, "no samples");
    }
    let rows: Vec<[String; 2]> = ticks
        .iter()
        .enumerate()
        .map(|(index, count)| (index, percent(*count, all)))
        .filter(|(_, percent)| *percent > cutoff)
        .map(|(index, percent)| {
            let name = match addresses.get(index) {
                Some(address) => names.name_at(*address),
                None if index == addresses.len() => "user".to_owned(),
                None => "idle".to_owned(),
            };
            [name, format!("{percent:6.2}")]
        })
        .collect();
    write_rows(output, SPACING, &[Align::Left, Align::Right], &rows)
}

/// Whether a table was loaded between the records, which sets all counters to 0.
pub(super) fn was_reset(before: &Record, after: &Record) -> bool {
    before
        .counters
        .iter()
        .zip(&after.counters)
        .any(|(before, after)| after < before)
}

fn ticks_between(before: &Record, after: &Record) -> Vec<u64> {
    if was_reset(before, after) {
        return after.counters.clone();
    }
    before
        .counters
        .iter()
        .zip(&after.counters)
        .map(|(before, after)| after - before)
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 ticks are millions of years"
)]
fn percent(count: u64, all: u128) -> f64 {
    // The multiplication comes first, so that a whole number of percent is exact.
    (100.0 * count as f64) / all as f64
}

fn time(seconds: i64) -> String {
    match LocalTime::from_unix(seconds) {
        Some(time) => time.to_string(),
        None => format!("{seconds} seconds after 1970"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(address: u64, name: &str, global: bool) -> Symbol {
        Symbol {
            address,
            name: name.to_owned(),
            global,
        }
    }

    fn names() -> Names {
        let symbols = vec![
            symbol(0x100, "alias", false),
            symbol(0x100, "entry", true),
            symbol(0x100, "late", true),
            symbol(0x200, "sys_read", false),
            symbol(0x280, "", false),
            symbol(0x300, "", false),
            symbol(0x300, "again", false),
        ];
        Names::new(symbols, 0x1000)
    }

    fn record(time: i64, counters: &[u64]) -> Record {
        Record {
            time,
            counters: counters.to_vec(),
        }
    }

    /// The output after the two times and the empty line.
    fn rows(before: &[u64], after: &[u64], cutoff: f64) -> String {
        let mut output = Vec::new();
        let addresses = [0, 0x1100, 0x1200, 0x1240];
        let (before, after) = (record(1000, before), record(1600, after));
        write_interval(&mut output, &addresses, &names(), &before, &after, cutoff).unwrap();
        let text = String::from_utf8(output).unwrap();
        let mut lines = text.splitn(4, '\n');
        for seconds in [1000, 1600] {
            assert_eq!(lines.next(), Some(&*time(seconds)));
        }
        assert_eq!(lines.next(), Some(""));
        lines.next().unwrap_or_default().to_owned()
    }

    #[test]
    fn names_are_found_by_address() {
        let names = names();
        for (address, name) in [
            (0x1100, "entry"),
            (0x1200, "sys_read"),
            (0x1240, "sys_read+0x40"),
            (0x1280, "0x1280"),
            (0x1290, "0x1290"),
            (0x1300, "again"),
            (0x10ff, "0x10ff"),
            (0, "0x0"),
        ] {
            assert_eq!(names.name_at(address), name);
        }
        assert_eq!(Names::default().name_at(0x1100), "0x1100");
    }

    #[test]
    fn shares_are_of_all_ticks_user_and_idle_included() {
        let text = rows(&[5, 10, 0, 1, 100, 7], &[6, 20, 5, 34, 201, 57], 0.0);
        let expected = "\
0x0             0.50
entry           5.00
sys_read        2.50
sys_read+0x40  16.50
user           50.50
idle           25.00
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_share_has_to_be_greater_than_the_cutoff() {
        let text = rows(&[0; 6], &[1, 1, 2, 0, 96, 0], 1.0);
        assert_eq!(text, "sys_read   2.00\nuser      96.00\n");
        assert_eq!(rows(&[0; 6], &[0, 0, 0, 0, 1000, 1], 0.1), "user  99.90\n");
        assert_eq!(rows(&[0; 6], &[0, 1, 0, 0, 1, 0], 100.0), "");
        assert_eq!(rows(&[0; 6], &[0, 0, 0, 0, 0, 9], 1.0), "idle 100.00\n");
    }

    #[test]
    fn equal_counters_give_no_samples() {
        assert_eq!(rows(&[3; 6], &[3; 6], 1.0), "no samples\n");
    }

    #[test]
    fn counters_that_restarted_count_from_there() {
        let (before, after) = (&[9, 9, 9, 9, 900, 9], &[0, 0, 0, 0, 30, 10]);
        assert_eq!(rows(before, after, 0.0), "user  75.00\nidle  25.00\n");
        assert!(was_reset(&record(0, before), &record(1, after)));
    }

    #[test]
    fn counters_at_their_end_do_not_overflow() {
        let most = u64::MAX;
        let text = rows(&[0; 6], &[most, most, 0, 0, most, most], 1.0);
        assert!(text.starts_with("0x0    25.00\n"), "{text}");
    }
}
