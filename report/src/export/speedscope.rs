//! speedscope's own format (<https://www.speedscope.app/file-format-schema.json>,
//! <https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>).
//!
//! Each vCPU is a profile: all its ticks in a row, in ns or in events. The outermost frames are the thread and the mode. `file` is
//! the source file, or the module if the source file is unknown; `line` is the lowest sampled line of the function:
//! speedscope takes functions with different lines for different ones.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use kvmprof_recording::Mode;
use serde::Serialize;
use serde_json::json;

use super::interned::Interned;
use super::{Event, ExportError, Source};
use crate::profile::{Quantity, Stack};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Debug, PartialEq, Eq, Hash, Serialize)]
struct Frame {
    name: String,
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// Samples with equal values here have the same stack in the export.
#[derive(Debug, PartialEq, Eq, Hash)]
struct StackKey {
    thread: (i32, i32, String),
    mode: Mode,
    stack: Option<Stack>,
}

struct Tables<'a> {
    source: &'a Source,
    lines: HashMap<SourceFunction, u32>,
    frames: Interned<Frame>,
    numbers: HashMap<StackKey, usize>,
    // The frames of each stack, outermost first.
    stacks: Vec<Vec<u32>>,
}

/// Consecutive ticks in one stack.
struct Run {
    stack: u32,
    ticks: u32,
}

/// A function's name and source file.
type SourceFunction = (String, String);

/// The lowest sampled line of each function.
fn first_lines(source: &Source) -> HashMap<SourceFunction, u32> {
    let mut lines = HashMap::new();
    let profile = source.profile();
    for (pid, stack) in profile.stacks.keys() {
        for frame in profile.frames(*pid, stack) {
            if let Some(place) = &frame.frame.source
                && place.line > 0
            {
                let key = (frame.frame.function.to_string(), place.file.to_string());
                let first = lines.entry(key).or_insert(place.line);
                *first = place.line.min(*first);
            }
        }
    }
    lines
}

/// Writes `source` to `out`.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut tables = Tables {
        source,
        lines: first_lines(source),
        frames: Interned::new("frames"),
        numbers: HashMap::new(),
        stacks: Vec::new(),
    };
    let mut vcpus: BTreeMap<u16, Vec<Run>> = BTreeMap::new();
    source.for_each(|event| {
        let stack = tables.stack(event)?;
        append(vcpus.entry(event.vcpu).or_default(), stack, event.ticks);
        Ok(())
    })?;
    Ok(write_document(tables, &vcpus, out)?)
}

impl Tables<'_> {
    fn stack(&mut self, event: &Event) -> Result<u32, ExportError> {
        let key = StackKey {
            thread: (event.pid, event.tid, event.comm.clone()),
            mode: event.mode,
            stack: event.stack.clone(),
        };
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                let stack = self.new_stack(event)?;
                self.stacks.push(stack);
                self.numbers.insert(key, self.stacks.len() - 1);
                self.stacks.len() - 1
            }
        };
        u32::try_from(number).map_err(|_| ExportError::TooMany("stacks"))
    }

    fn new_stack(&mut self, event: &Event) -> Result<Vec<u32>, ExportError> {
        let thread = format!("{} (pid {}, tid {})", event.comm, event.pid, event.tid);
        let mut frame = |name: String, file: &str, line| {
            let file = file.to_owned();
            let (number, _) = self.frames.number(Frame { name, file, line })?;
            Ok::<u32, ExportError>(number)
        };
        let mut stack = vec![
            frame(thread, "[thread]", None)?,
            frame(format!("[{}]", event.mode.name()), "[mode]", None)?,
        ];
        for inner in self.source.frames_to_keep(event)?.into_iter().rev() {
            let name = inner.name.into_owned();
            stack.push(match inner.source {
                None => frame(name, &inner.module, None)?,
                Some((file, _)) => {
                    let key = (name.clone(), file.clone().into_owned());
                    let line = self.lines.get(&key).copied();
                    frame(name, &file, line)?
                }
            });
        }
        Ok(stack)
    }
}

fn append(runs: &mut Vec<Run>, stack: u32, ticks: u64) {
    let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
    match runs.last_mut() {
        Some(last) if last.stack == stack && last.ticks.checked_add(ticks).is_some() => {
            last.ticks += ticks;
        }
        _ => runs.push(Run { stack, ticks }),
    }
}

fn write_document(
    tables: Tables<'_>,
    vcpus: &BTreeMap<u16, Vec<Run>>,
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
    serde_json::to_writer(&mut *out, &tables.frames.into_ordered())?;
    write!(out, "}},\n\"profiles\":[")?;
    for (index, (vcpu, runs)) in vcpus.iter().enumerate() {
        let ticks: u64 = runs.iter().map(|run| u64::from(run.ticks)).sum();
        write!(
            out,
            "{}\n{{\"type\":\"sampled\",\"name\":\"vCPU {vcpu}{separator}{name}\",\"unit\":\"{unit}\",\"startValue\":0,\"endValue\":{},\n\"samples\":",
            if index == 0 { "" } else { "," },
            weight.of(ticks)
        )?;
        let samples = runs.iter().map(|run| &tables.stacks[run.stack as usize]);
        write_list(samples, out)?;
        write!(out, ",\n\"weights\":")?;
        let weights = runs.iter().map(|run| weight.of(run.ticks.into()));
        write_list(weights, out)?;
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
