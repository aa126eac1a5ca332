//! Callgrind's profile format (<https://valgrind.org/docs/manual/cl-format.html>), for `callgrind_annotate` and
//! KCachegrind.
//!
//! The cost is in ticks of the clock, or of the event that takes the samples: all ticks, and those of each mode. An object (`ob=`) is a module; a file (`fl=`) is
//! the source file, with lines, or the module if the source file is unknown. The format has neither processes and threads within one profile nor vCPUs: those are
//! summed up. (An object for each process and module would not help: `callgrind_annotate` identifies functions by file and name, and shows the last of their objects.)
//! Samples don't count calls, so a call's count is the number of its ticks.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use super::{Event, ExportError, Source};
use crate::model::Table;
use crate::text::visible;

/// All ticks, then those of each mode.
type Cost = [u64; 5];

/// A function, of all processes.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    module: String,
    file: String,
    name: String,
}

/// The functions of a stack, innermost first, and the source line of the innermost one.
type Path = (Vec<u32>, u32);

#[derive(Default)]
struct Costs {
    /// Costs by function and line.
    own: BTreeMap<(u32, u32), Cost>,
    calls: BTreeMap<u32, BTreeMap<u32, Cost>>,
}

/// Writes `source` to `out`.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut functions = Table::default();
    let mut costs = Costs::default();
    // The paths and their costs, by the stacks' numbers.
    let mut paths: Vec<Option<(Path, Cost)>> = vec![None; source.stacks() + 1];
    source.for_each(|event| {
        let known = &mut paths[source.stack_number(event)];
        if known.is_none() {
            *known = Some((path(source, event, &mut functions)?, Cost::default()));
        }
        if let Some((_, sum)) = known {
            add(sum, cost(event));
        }
        Ok(())
    })?;
    for (path, cost) in paths.iter().flatten() {
        costs.add(path, *cost);
    }
    Ok(write_costs(source, functions.values(), &costs, out)?)
}

fn path(
    source: &Source,
    event: &Event,
    functions: &mut Table<Function>,
) -> Result<Path, ExportError> {
    let frames = source.frames_to_keep(event)?;
    let innermost = frames.first().and_then(|frame| frame.source);
    let line = innermost.map_or(0, |(_, line)| line);
    let numbers = frames.into_iter().map(|frame| {
        functions.number(Function {
            file: frame
                .source
                .map_or(frame.module, |(file, _)| file)
                .to_string(),
            module: frame.module.to_string(),
            name: frame.name.to_string(),
        })
    });
    Ok((numbers.collect(), line))
}

fn cost(event: &Event) -> Cost {
    let mut cost = [event.ticks, 0, 0, 0, 0];
    cost[1 + event.mode.index()] = event.ticks;
    cost
}

fn add(sum: &mut Cost, cost: Cost) {
    for (part, more) in sum.iter_mut().zip(cost) {
        *part = part.saturating_add(more);
    }
}

impl Costs {
    fn add(&mut self, (path, line): &Path, cost: Cost) {
        if let Some(innermost) = path.first() {
            add(self.own.entry((*innermost, *line)).or_default(), cost);
        }
        // A call that is on the stack more than once gets the tick once.
        let mut seen = HashSet::new();
        for call in path.windows(2) {
            let &[callee, caller] = call else { continue };
            if seen.insert((caller, callee)) {
                let callees = self.calls.entry(caller).or_default();
                add(callees.entry(callee).or_default(), cost);
            }
        }
    }
}

fn write_costs(
    source: &Source,
    functions: &[Function],
    costs: &Costs,
    out: &mut dyn Write,
) -> io::Result<()> {
    let info = &source.profile().contents.info;
    let mut all = Cost::default();
    for cost in costs.own.values() {
        add(&mut all, *cost);
    }
    writeln!(out, "# callgrind format")?;
    writeln!(out, "version: 1")?;
    writeln!(out, "creator: kvmprof {}", line(&info.program))?;
    writeln!(out, "cmd: {}", line(&info.kernel))?;
    match info.event {
        None => writeln!(
            out,
            "desc: Timerange: ticks of a {} Hz clock on {} vCPU(s)",
            info.hz, info.vcpus
        )?,
        Some(event) => writeln!(
            out,
            "desc: Trigger: {} of each of {} vCPU(s)",
            event.describe(),
            info.vcpus
        )?,
    }
    writeln!(out, "positions: line")?;
    writeln!(out, "events: Ticks User Kernel Interrupt Idle")?;
    writeln!(out, "summary: {}", columns(&all))?;
    let zero = Cost::default();
    for (number, function) in (0_u32..).zip(functions) {
        writeln!(out)?;
        write_position("", function, out)?;
        let mut own = costs.own.range((number, 0)..=(number, u32::MAX)).peekable();
        if own.peek().is_none() {
            write_cost(0, &zero, out)?;
        }
        for ((_, line), cost) in own {
            write_cost(*line, cost, out)?;
        }
        for (callee, cost) in costs.calls.get(&number).into_iter().flatten() {
            write_position("c", &functions[*callee as usize], out)?;
            writeln!(out, "calls={} 0", cost[0])?;
            write_cost(0, cost, out)?;
        }
    }
    writeln!(out)?;
    writeln!(out, "totals: {}", columns(&all))
}

/// Writes the position of a cost: object, file and function, each name starting with `prefix`.
fn write_position(prefix: &str, function: &Function, out: &mut dyn Write) -> io::Result<()> {
    let Function { module, file, name } = function;
    let position = if prefix.is_empty() { "fl" } else { "cfi" };
    writeln!(out, "{prefix}ob={}", line(module))?;
    writeln!(out, "{position}={}", line(file))?;
    writeln!(out, "{prefix}fn={}", line(name))
}

/// Writes the cost of source line `line`; 0 if it is unknown.
fn write_cost(line: u32, cost: &Cost, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{line} {}", columns(cost))
}

fn columns([all, user, kernel, interrupt, idle]: &Cost) -> String {
    format!("{all} {user} {kernel} {interrupt} {idle}")
}

/// `text` on one line, and not as a number in parentheses, which the format reserves for name compression.
fn line(text: &str) -> String {
    let text = visible(&text.replace(['\n', '\r'], " "));
    match text.strip_prefix('(') {
        Some(rest) => format!("[{rest}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursion_counts_once_for_each_call() {
        let mut costs = Costs::default();
        costs.add(&(vec![2, 1, 2, 1, 0], 7), [1, 1, 0, 0, 0]);
        assert_eq!(costs.own[&(2, 7)][0], 1);
        assert_eq!(costs.calls[&1][&2][0], 1);
        assert_eq!(costs.calls[&2][&1][0], 1);
        assert_eq!(costs.calls[&0][&1][0], 1);
    }

    #[test]
    fn names_stay_on_their_lines() {
        assert_eq!(line("(1) f\ng"), "[1) f g");
    }
}
