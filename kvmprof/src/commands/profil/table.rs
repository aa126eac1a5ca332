//! Ticks as a table with names and bars.

use std::collections::BTreeMap;
use std::io::{self, Write};

use kvmprof_abi::profil::Status;
use kvmprof_cli::table::{Align, percent, write_table};

use super::histogram::Hit;
use super::process::CodeName;
use crate::commands::bar::bar;

/// Code with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The code, and its ticks.
    pub hit: Hit,
    /// Its name.
    pub name: CodeName,
}

/// A row for each hit, with the name from `name`.
pub fn single_rows(hits: &[Hit], name: impl Fn(&Hit) -> CodeName) -> Vec<Row> {
    let row = |hit: &Hit| Row {
        hit: *hit,
        name: name(hit),
    };
    hits.iter().map(row).collect()
}

/// A row for all hits of each function. Functions with the most ticks come first.
pub fn function_rows(hits: &[Hit], name: impl Fn(&Hit) -> CodeName) -> Vec<Row> {
    let mut functions: BTreeMap<CodeName, Hit> = BTreeMap::new();
    for hit in hits {
        let sum = functions
            .entry(name(hit))
            .or_insert(Hit { count: 0, ..*hit });
        sum.begin = sum.begin.min(hit.begin);
        sum.last = sum.last.max(hit.last);
        sum.count += hit.count;
    }
    let functions = functions.into_iter();
    let mut rows: Vec<Row> = functions.map(|(name, hit)| Row { hit, name }).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.hit.count), row.hit.begin));
    rows
}

/// Writes the first `top` of `rows`, and the number of further rows.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_rows(out: &mut dyn Write, rows: &[Row], top: usize) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "  No ticks in the region.");
    }
    let total = rows.iter().map(|row| row.hit.count).sum();
    let largest = rows.iter().map(|row| row.hit.count).max().unwrap_or(1);
    let cells = rows.iter().take(top).map(|Row { hit, name }| {
        [
            addresses(hit),
            hit.count.to_string(),
            percent(hit.count, total),
            bar(part(hit.count, largest)),
            name.module.clone(),
            name.function.clone(),
        ]
    });
    let headings = [
        ("ADDRESSES", Align::Left),
        ("COUNT", Align::Right),
        ("SHARE", Align::Right),
        ("", Align::Left),
        ("MODULE", Align::Left),
        ("FUNCTION", Align::Left),
    ];
    write_table(out, &headings, &cells.collect::<Vec<_>>())?;
    match rows.len().saturating_sub(top) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more (--top shows them)"),
    }
}

fn addresses(hit: &Hit) -> String {
    if hit.begin == hit.last {
        return format!("{:#x}", hit.begin);
    }
    format!("{:#x}-{:#x}", hit.begin, hit.last)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bars are drawn to an eighth of a column"
)]
fn part(count: u64, largest: u64) -> f64 {
    count as f64 / largest.max(1) as f64
}

/// How the ticks that found process `pid` in user mode were counted, as an equation.
pub fn account(pid: i32, status: &Status) -> String {
    let mut parts = vec![format!("{} stored", status.stored)];
    for (count, what) in [
        (status.outside, "outside the region"),
        (status.waiting, "waiting"),
        (status.lost, "lost"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let all = status.ticks;
    format!(
        "{all} ticks of process {pid} in user mode = {}",
        parts.join(" + ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits() -> Vec<Hit> {
        [(0x1000, 3), (0x1008, 1), (0x2000, 12)]
            .map(|(begin, count)| Hit {
                begin,
                last: begin + 7,
                count,
            })
            .to_vec()
    }

    fn name(hit: &Hit) -> CodeName {
        CodeName {
            module: "loom".to_owned(),
            function: if hit.begin < 0x2000 { "weave" } else { "card" }.to_owned(),
        }
    }

    fn text(rows: &[Row], top: usize) -> Vec<String> {
        let mut out = Vec::new();
        write_rows(&mut out, rows, top).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn functions_are_sorted_by_share_and_counts_by_address() {
        let full = "█".repeat(24);
        let short = "█".repeat(8);
        let rest = " ".repeat(16);
        assert_eq!(
            text(&function_rows(&hits(), name), 5)[1..],
            [
                format!("  0x2000-0x2007     12  75.0 %  {full}  loom    card"),
                format!("  0x1000-0x100f      4  25.0 %  {short}{rest}  loom    weave"),
            ]
        );
        let single = text(&single_rows(&hits(), name), 2);
        assert!(
            single[1].starts_with("  0x1000-0x1007      3  18.8 %"),
            "{single:?}"
        );
        assert_eq!(single[3], "  and 1 more (--top shows them)");
        assert_eq!(text(&[], 5), ["  No ticks in the region."]);
    }

    #[test]
    fn every_tick_is_accounted_for() {
        let status = Status {
            ticks: 10,
            stored: 7,
            outside: 2,
            lost: 1,
            ..Status::default()
        };
        assert_eq!(
            account(101, &status),
            "10 ticks of process 101 in user mode = 7 stored + 2 outside the region + 1 lost"
        );
    }
}
