//! speedscope's own format (<https://www.speedscope.app/file-format-schema.json>,
//! <https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>).
//!
//! Each vCPU is a profile: its ticks in ns or in events, each in the time before its sample. Where a vCPU has no samples for half a tick or longer, because its ticks
//! were stolen or aren't selected, it has an empty stack, which speedscope shows as a gap and doesn't count. So all vCPUs have the same axis of time. Events have none.
//!
//! The outermost frames are the thread and the mode. `file` is the source file, or the module if the source file is unknown; `line` is the
//! lowest sampled line of the function: speedscope takes functions with different lines for different ones.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use kvmprof_recording::Mode;
use serde::Serialize;
use serde_json::json;

use super::{Event, ExportError, Source};
use crate::model::Table;
use crate::profile::Quantity;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Debug, PartialEq, Eq, Hash, Serialize)]
struct Frame {
    name: String,
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

struct Tables<'a> {
    source: &'a Source,
    lines: HashMap<SourceFunction, u32>,
    frames: Table<Frame>,
    /// The thread, the mode and the stack of each stack of the export.
    numbers: Table<(u32, Mode, Option<u32>)>,
    // The frames of each stack, outermost first.
    stacks: Vec<Vec<u32>>,
}

/// Consecutive ticks in one stack, or a time without samples.
struct Run {
    stack: Option<u32>,
    /// In ns, or events.
    amount: u64,
}

/// The ticks of a vCPU, and when the first one began and the last one ended: in ns of CLOCK_MONOTONIC, or events since the first one.
#[derive(Default)]
struct Vcpu {
    begin: u64,
    end: u64,
    runs: Vec<Run>,
}

/// A function's name and source file.
type SourceFunction = (String, String);

/// The lowest sampled line of each function.
fn first_lines(source: &Source) -> HashMap<SourceFunction, u32> {
    let mut lines = HashMap::new();
    let profile = source.profile();
    for frame in profile.stacks().flat_map(|stack| profile.frames(stack)) {
        if let Some((file, line)) = frame.source
            && line > 0
        {
            let key = (frame.name.to_string(), file.to_string());
            let first = lines.entry(key).or_insert(line);
            *first = line.min(*first);
        }
    }
    lines
}

/// Writes `source` to `out`.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut tables = Tables {
        source,
        lines: first_lines(source),
        frames: Table::default(),
        numbers: Table::default(),
        stacks: Vec::new(),
    };
    let mut vcpus: BTreeMap<u16, Vcpu> = BTreeMap::new();
    let tick = source.weight().time_ns();
    source.for_each(|event| {
        let stack = tables.stack(event)?;
        let vcpu = vcpus.entry(event.vcpu).or_default();
        if tick > 0 {
            vcpu.go_to(event.time.saturating_sub(tick), tick);
        }
        vcpu.append(Some(stack), source.weight().of(event.ticks));
        Ok(())
    })?;
    if tick > 0 {
        align(&mut vcpus);
    }
    Ok(write_document(tables, &vcpus, out)?)
}

impl Tables<'_> {
    fn stack(&mut self, event: &Event) -> Result<u32, ExportError> {
        let key = (event.thread, event.mode, event.stack);
        if let Some(known) = self.numbers.find(&key) {
            return Ok(known);
        }
        let stack = self.new_stack(event)?;
        self.stacks.push(stack);
        Ok(self.numbers.push(key))
    }

    fn new_stack(&mut self, event: &Event) -> Result<Vec<u32>, ExportError> {
        let thread = self.source.thread(event);
        let thread = format!("{} (pid {}, tid {})", thread.comm, thread.pid, thread.tid);
        let frames = self.source.frames_to_keep(event)?;
        let mut frame = |name: String, file: &str, line| {
            let file = file.to_owned();
            self.frames.number(Frame { name, file, line })
        };
        let mut stack = vec![
            frame(thread, "[thread]", None),
            frame(format!("[{}]", event.mode.name()), "[mode]", None),
        ];
        for inner in frames.into_iter().rev() {
            let name = inner.name.to_string();
            stack.push(match inner.source {
                None => frame(name, inner.module, None),
                Some((file, _)) => {
                    let key = (name.clone(), file.to_string());
                    let line = self.lines.get(&key).copied();
                    frame(name, file, line)
                }
            });
        }
        Ok(stack)
    }
}

impl Vcpu {
    /// Adds the time without samples before a tick that began at `time` and takes `tick` ns.
    fn go_to(&mut self, time: u64, tick: u64) {
        if self.runs.is_empty() {
            (self.begin, self.end) = (time, time);
        }
        // Ticks come unevenly: what is less than half of one is left for the next gap.
        let gap = time.saturating_sub(self.end);
        if gap >= tick.div_ceil(2) {
            self.append(None, gap);
        }
    }

    fn append(&mut self, stack: Option<u32>, amount: u64) {
        self.end = self.end.saturating_add(amount);
        match self.runs.last_mut() {
            Some(last) if last.stack == stack => last.amount = last.amount.saturating_add(amount),
            _ => self.runs.push(Run { stack, amount }),
        }
    }
}

/// Lets all vCPUs begin and end at the same time.
fn align(vcpus: &mut BTreeMap<u16, Vcpu>) {
    let begin = vcpus.values().map(|vcpu| vcpu.begin).min();
    let end = vcpus.values().map(|vcpu| vcpu.end).max();
    let Some((begin, end)) = begin.zip(end) else {
        return;
    };
    for vcpu in vcpus.values_mut() {
        let (before, after) = (vcpu.begin - begin, end - vcpu.end);
        if before > 0 {
            let (stack, amount) = (None, before);
            vcpu.runs.insert(0, Run { stack, amount });
        }
        if after > 0 {
            vcpu.append(None, after);
        }
        vcpu.begin = begin;
    }
}

fn write_document(
    tables: Tables<'_>,
    vcpus: &BTreeMap<u16, Vcpu>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let info = &tables.source.profile().contents.info;
    let weight = tables.source.weight();
    let (name, unit) = match weight.quantity {
        Quantity::Time => ("", "nanoseconds"),
        Quantity::GuestTime => ("guest-time", "nanoseconds"),
        Quantity::Events(name) => (name, "none"),
    };
    let separator = if name.is_empty() { "" } else { ": " };
    write!(
        out,
        "{{\"$schema\":{},\"exporter\":{},\"name\":{},\"activeProfileIndex\":0,\n\"shared\":{{\"frames\":",
        json!(SCHEMA),
        json!(format!("kvmprof@{}", info.program)),
        json!(info.kernel)
    )?;
    serde_json::to_writer(&mut *out, tables.frames.values())?;
    write!(out, "}},\n\"profiles\":[")?;
    // speedscope's axis begins at 0.
    let zero = if weight.time_ns() > 0 {
        info.began_monotonic_ns
    } else {
        0
    };
    for (index, (number, vcpu)) in vcpus.iter().enumerate() {
        write!(
            out,
            "{}\n{{\"type\":\"sampled\",\"name\":\"vCPU {number}{separator}{name}\",\"unit\":\"{unit}\",\"startValue\":{},\"endValue\":{},\n\"samples\":",
            if index == 0 { "" } else { "," },
            vcpu.begin.saturating_sub(zero),
            vcpu.end.saturating_sub(zero)
        )?;
        let stack = |run: &Run| match run.stack {
            Some(stack) => tables.stacks[stack as usize].as_slice(),
            None => &[],
        };
        write_list(vcpu.runs.iter().map(stack), out)?;
        write!(out, ",\n\"weights\":")?;
        write_list(vcpu.runs.iter().map(|run| run.amount), out)?;
        write!(out, "}}")?;
    }
    writeln!(out, "]}}")
}

/// Writes a JSON array with one member at a time in memory.
fn write_list(members: impl Iterator<Item: Serialize>, out: &mut dyn Write) -> io::Result<()> {
    for (index, member) in members.enumerate() {
        out.write_all(if index == 0 { b"[" } else { b"," })?;
        serde_json::to_writer(&mut *out, &member)?;
    }
    out.write_all(b"]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(vcpu: &Vcpu) -> Vec<(Option<u32>, u64)> {
        let runs = vcpu.runs.iter();
        runs.map(|run| (run.stack, run.amount)).collect()
    }

    #[test]
    fn vcpus_have_one_axis_of_time() {
        let mut vcpus = BTreeMap::new();
        for (vcpu, time, stack, ticks) in [
            (0, 100, 1, 1),
            // Late and early, by less than half a tick.
            (0, 113, 1, 1),
            (0, 119, 1, 1),
            // Three ticks were stolen.
            (0, 160, 1, 1),
            (0, 170, 2, 2),
            (1, 150, 3, 1),
        ] {
            let vcpu: &mut Vcpu = vcpus.entry(vcpu).or_default();
            vcpu.go_to(time, 10);
            vcpu.append(Some(stack), 10 * ticks);
        }
        align(&mut vcpus);
        let (one, two, three) = (Some(1), Some(2), Some(3));
        assert_eq!(
            runs(&vcpus[&0]),
            [(one, 30), (None, 30), (one, 10), (two, 20)]
        );
        assert_eq!(runs(&vcpus[&1]), [(None, 50), (three, 10), (None, 30)]);
        assert!(
            vcpus
                .values()
                .all(|vcpu| (vcpu.begin, vcpu.end) == (100, 190))
        );
    }
}
