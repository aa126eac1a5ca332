//! Tables for pipes and files, one after the other.

use std::io::{self, Write};

use super::lines;
use super::snapshot::Snapshot;
use super::view::{Table, View};

/// Characters of a line: tables have all their columns then. Names may make it longer.
const WIDTH: usize = 80;

/// Prints a snapshot: at most `rows` rows of each table.
///
/// # Errors
/// When `out` takes no more.
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
    writeln!(out)?;
    out.flush()
}

/// Says how many of `all` rows were left out behind those `shown`.
fn print_rest(all: usize, shown: usize, what: &str, out: &mut dyn Write) -> io::Result<()> {
    match all.checked_sub(shown) {
        Some(more @ 1..) => writeln!(out, "  and {more} other {what} (--top shows more)"),
        _ => Ok(()),
    }
}
