//! Prints the sums of looks as text.

use std::io::{self, Write};

use kvmprof_recording::tasks::TaskState;

use super::{TaskSums, WaitRow, state_name, wait_rows};
use crate::symbolize::Resolver;

/// Number of callers that are shown of a function that waits.
const CALLERS: usize = 3;

/// Prints `sums`: states, vCPUs, waits, and waits of uninterruptible tasks, at most `top` rows each.
///
/// # Errors
/// `out` can't be written to.
pub fn print(
    sums: &TaskSums,
    resolver: &Resolver,
    top: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mean = sums.duration.checked_div(sums.looks).unwrap_or(0);
    let incomplete = sums.looks - sums.complete;
    writeln!(
        out,
        "{} looks at the guest's tasks, {incomplete} of them without some; a vCPU stood still for {} each, {} at most",
        sums.looks,
        milliseconds(mean),
        milliseconds(sums.longest)
    )?;
    print_states(sums, out)?;
    print_vcpus(sums, out)?;
    let rows = wait_rows(sums, resolver);
    let waiting = |row: &&WaitRow| row.state != TaskState::Idle;
    let rows: Vec<&WaitRow> = rows.iter().filter(waiting).collect();
    writeln!(
        out,
        "\n     SEEN  TASKS    LONGEST  STATE  WAITS IN < CALLERS, AND WHO DOES MOST"
    )?;
    print_rows(sums, &rows, top, out)?;
    let stuck = |row: &&&WaitRow| row.state == TaskState::Uninterruptible;
    let rows: Vec<&WaitRow> = rows.iter().filter(stuck).copied().collect();
    if !rows.is_empty() {
        writeln!(
            out,
            "\n     SEEN  TASKS    LONGEST  UNINTERRUPTIBLE (D): WAITS IN < CALLERS, AND WHO DOES MOST"
        )?;
        print_rows(sums, &rows, top, out)?;
    }
    print_delays(sums, top, out)?;
    print_free_waits(sums, top, out)
}

fn print_states(sums: &TaskSums, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n  STATE                  SEEN   PER LOOK")?;
    let mut row = |letter: char, name: &str, count: u64| {
        writeln!(
            out,
            "  {letter} {name:<16} {count:>8}   {:>8}",
            per(count, sums.looks)
        )
    };
    row('R', "on a vCPU", sums.on_vcpu)?;
    for (state, count) in &sums.states {
        row(state.letter(), state_name(*state), *count)?;
    }
    if sums.without_stack > 0 {
        writeln!(
            out,
            "  {} of them have no stack: they ran while it was read, or others' turn came first",
            sums.without_stack
        )?;
    }
    Ok(())
}

fn print_vcpus(sums: &TaskSums, out: &mut dyn Write) -> io::Result<()> {
    if sums.vcpus.is_empty() {
        return writeln!(
            out,
            "\n  What waits for each vCPU is left out: only some processes were recorded or are selected"
        );
    }
    writeln!(
        out,
        "\n  VCPU  TASKS WAITING PER LOOK    MOST  LOOKS WITH ANY  LOOKS FREE  FREE WHILE A TASK WAITS  WAITED IN ALL"
    )?;
    for (vcpu, queue) in &sums.vcpus {
        writeln!(
            out,
            "  {vcpu:>4}  {:>22}  {:>6}  {:>14}  {:>10}  {:>23}  {:>13}",
            per(queue.waiting, sums.looks),
            queue.most,
            queue.looks,
            queue.free,
            queue.free_while_waiting,
            milliseconds(queue.delay)
        )?;
    }
    Ok(())
}

fn print_rows(
    sums: &TaskSums,
    rows: &[&WaitRow],
    top: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    for row in rows.iter().take(top) {
        let mut functions = row.functions.iter().take(CALLERS + 1);
        let first = functions.next().map_or("(unknown)", AsRef::as_ref);
        let callers: String = functions.map(|caller| format!(" < {caller}")).collect();
        writeln!(
            out,
            " {:>8}  {:>5}  {:>9}  {:<5}  {first}{callers}  [{} {}]",
            row.seen,
            row.tasks,
            seconds(row.longest),
            row.state.letter(),
            row.most.tid,
            sums.name(row.most)
        )?;
    }
    if rows.len() > top {
        writeln!(out, "  ... and {} more", rows.len() - top)?;
    }
    Ok(())
}

fn print_delays(sums: &TaskSums, top: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut delays: Vec<_> = sums
        .delays
        .iter()
        .filter(|(_, delay)| **delay > 0)
        .collect();
    delays.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
    if delays.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n  WAITED FOR A VCPU       TID  NAME")?;
    for (thread, delay) in delays.into_iter().take(top) {
        writeln!(
            out,
            "  {:>17}  {:>8}  {}",
            milliseconds(*delay),
            thread.tid,
            sums.name(*thread)
        )?;
    }
    Ok(())
}

/// Prints the tasks that waited for a vCPU while one was free.
fn print_free_waits(sums: &TaskSums, top: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut waits: Vec<_> = sums.free_waits.iter().collect();
    waits.sort_by(|a, b| b.1.looks.cmp(&a.1.looks).then_with(|| a.0.cmp(b.0)));
    if waits.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n  WAITED WHILE A VCPU WAS FREE  WHILE ITS OWN WAS  FOR VCPU       TID  NAME"
    )?;
    for ((thread, vcpu), wait) in waits.iter().take(top) {
        writeln!(
            out,
            "  {:>28}  {:>17}  {vcpu:>8}  {:>8}  {}",
            wait.looks,
            wait.own,
            thread.tid,
            sums.name(*thread)
        )?;
    }
    if waits.len() > top {
        writeln!(out, "  ... and {} more", waits.len() - top)?;
    }
    Ok(())
}

/// `count` divided by `looks`, with one decimal.
fn per(count: u64, looks: u64) -> String {
    let tenths = count.saturating_mul(10).checked_div(looks).unwrap_or(0);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// `ns` in ms.
fn milliseconds(ns: u64) -> String {
    format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000)
}

/// `ns` in s.
fn seconds(ns: u64) -> String {
    format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1000)
}
