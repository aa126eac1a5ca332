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
    let mut tables = Tables { sums, top, out };
    tables.states()?;
    tables.vcpus()?;
    let rows = wait_rows(sums, resolver);
    let waiting = |row: &&WaitRow| row.state != TaskState::Idle;
    let rows: Vec<&WaitRow> = rows.iter().filter(waiting).collect();
    tables.waits("STATE ", &rows)?;
    let stuck = |row: &&&WaitRow| row.state == TaskState::Uninterruptible;
    let rows: Vec<&WaitRow> = rows.iter().filter(stuck).copied().collect();
    if !rows.is_empty() {
        tables.waits("UNINTERRUPTIBLE (D):", &rows)?;
    }
    tables.delays()?;
    tables.free_waits()
}

/// The tables that are printed, with at most `top` rows.
struct Tables<'a> {
    sums: &'a TaskSums,
    top: usize,
    out: &'a mut dyn Write,
}

impl Tables<'_> {
    fn states(&mut self) -> io::Result<()> {
        let sums = self.sums;
        writeln!(self.out, "\n  STATE                  SEEN   PER LOOK")?;
        let states = sums.states.iter();
        let states = states.map(|(state, count)| (state.letter(), state_name(*state), *count));
        for (letter, name, count) in [('R', "on a vCPU", sums.on_vcpu)].into_iter().chain(states) {
            writeln!(
                self.out,
                "  {letter} {name:<16} {count:>8}   {:>8}",
                per(count, sums.looks)
            )?;
        }
        if sums.without_stack > 0 {
            writeln!(
                self.out,
                "  {} of them have no stack: they ran while it was read, or others' turn came first",
                sums.without_stack
            )?;
        }
        Ok(())
    }

    fn vcpus(&mut self) -> io::Result<()> {
        let sums = self.sums;
        if sums.vcpus.is_empty() {
            return writeln!(
                self.out,
                "\n  What waits for each vCPU is left out: only some processes were recorded or are selected"
            );
        }
        writeln!(
            self.out,
            "\n  VCPU  TASKS WAITING PER LOOK    MOST  LOOKS WITH ANY  LOOKS FREE  FREE WHILE A TASK WAITS  WAITED IN ALL"
        )?;
        for (vcpu, queue) in &sums.vcpus {
            writeln!(
                self.out,
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

    /// Prints `rows` under a heading with the `state` of their tasks.
    fn waits(&mut self, state: &str, rows: &[&WaitRow]) -> io::Result<()> {
        writeln!(
            self.out,
            "\n     SEEN  TASKS    LONGEST  {state} WAITS IN < CALLERS, AND WHO DOES MOST"
        )?;
        for row in rows.iter().take(self.top) {
            let mut functions = row.functions.iter().take(CALLERS + 1);
            let first = functions.next().map_or("(unknown)", AsRef::as_ref);
            let callers: String = functions.map(|caller| format!(" < {caller}")).collect();
            writeln!(
                self.out,
                " {:>8}  {:>5}  {:>9}  {:<5}  {first}{callers}  [{} {}]",
                row.seen,
                row.tasks,
                seconds(row.longest),
                row.state.letter(),
                row.most.tid,
                self.sums.name(row.most)
            )?;
        }
        self.rest(rows.len())
    }

    fn delays(&mut self) -> io::Result<()> {
        let delays = self.sums.delays.iter();
        let mut delays: Vec<_> = delays.filter(|(_, delay)| **delay > 0).collect();
        delays.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
        if delays.is_empty() {
            return Ok(());
        }
        writeln!(self.out, "\n  WAITED FOR A VCPU       TID  NAME")?;
        for (thread, delay) in delays.into_iter().take(self.top) {
            writeln!(
                self.out,
                "  {:>17}  {:>8}  {}",
                milliseconds(*delay),
                thread.tid,
                self.sums.name(*thread)
            )?;
        }
        Ok(())
    }

    /// Prints the tasks that waited for a vCPU while one was free.
    fn free_waits(&mut self) -> io::Result<()> {
        let mut waits: Vec<_> = self.sums.free_waits.iter().collect();
        waits.sort_by(|a, b| b.1.looks.cmp(&a.1.looks).then_with(|| a.0.cmp(b.0)));
        if waits.is_empty() {
            return Ok(());
        }
        writeln!(
            self.out,
            "\n  WAITED WHILE A VCPU WAS FREE  WHILE ITS OWN WAS  FOR VCPU       TID  NAME"
        )?;
        for ((thread, vcpu), wait) in waits.iter().take(self.top) {
            writeln!(
                self.out,
                "  {:>28}  {:>17}  {vcpu:>8}  {:>8}  {}",
                wait.looks,
                wait.own,
                thread.tid,
                self.sums.name(*thread)
            )?;
        }
        self.rest(waits.len())
    }

    /// Prints how many of `all` rows are left out.
    fn rest(&mut self, all: usize) -> io::Result<()> {
        match all.saturating_sub(self.top) {
            0 => Ok(()),
            more => writeln!(self.out, "  ... and {more} more"),
        }
    }
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
