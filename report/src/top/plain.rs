//! Prints tables to pipes and files.

use std::io::{self, Write};

use super::lines;
use super::snapshot::Snapshot;
use super::view::{Table, View};

/// Characters of a line, enough for all columns. Long names exceed it.
const WIDTH: usize = 80;

/// Prints a snapshot: at most `rows` rows of each table.
///
/// # Errors
/// Writing to `out` failed.
pub fn print(snapshot: &Snapshot, rows: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", lines::title(snapshot))?;
    writeln!(out, "{}", lines::rate(snapshot))?;
    for bar in lines::bars(snapshot, WIDTH, usize::MAX) {
        writeln!(out, "{bar}")?;
    }
    let whole = snapshot.known();
    let mut view = View::default();
    writeln!(out, "\n{}", lines::process_heading(WIDTH))?;
    let processes = view.processes(snapshot);
    for row in processes.iter().take(rows) {
        writeln!(out, "{}", lines::process_line(row, whole, WIDTH))?;
    }
    print_rest(processes.len(), rows, "processes", out)?;
    view.table = Table::Functions;
    writeln!(out, "\n{}", lines::function_heading(WIDTH))?;
    let functions = view.functions(snapshot);
    for row in functions.iter().take(rows) {
        writeln!(out, "{}", lines::function_line(row, whole, WIDTH))?;
    }
    print_rest(functions.len(), rows, "functions", out)?;
    if snapshot.by.is_some() {
        writeln!(out, "\n{}", lines::label_heading(snapshot, WIDTH))?;
        let labels = view.labels(snapshot);
        for row in labels.iter().take(rows) {
            writeln!(out, "{}", lines::label_line(row, whole, WIDTH))?;
        }
        print_rest(labels.len(), rows, "values", out)?;
    }
    writeln!(out)?;
    out.flush()
}

/// Prints how many of `all` rows follow the `shown` ones.
fn print_rest(all: usize, shown: usize, what: &str, out: &mut dyn Write) -> io::Result<()> {
    match all.checked_sub(shown) {
        Some(more @ 1..) => writeln!(out, "  and {more} other {what} (--top shows more)"),
        _ => Ok(()),
    }
}
