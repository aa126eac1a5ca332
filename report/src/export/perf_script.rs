//! Text like that of `perf script -F comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso`
//! (`tools/perf/Documentation/perf-script.txt` of the Linux sources; `tools/perf/builtin-script.c` defines the form).
//!
//! An event is a tick: of the clock, `cpu-clock` with its period in ns, or by its own name with their number. Ticks of a halted vCPU are one event with their
//! total period. perf has no field for the mode: the frames' objects show kernel and user (`[guest.kernel.kallsyms]`,
//! modules in brackets, files by their names), and an entry function among the frames shows interrupts. An inlined
//! function has `inlined` as its object, as in perf.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{Event, ExportError, Frame, Source};
use crate::profile::{HALTED_MODULE, Stack, Weight};
use crate::symbolize;

/// perf's name for a guest's kernel (`machine__mmap_name`, `tools/perf/util/machine.c`).
const KERNEL: &str = "[guest.kernel.kallsyms]";
/// The object of user frames in unknown files. Readers take names in brackets for the kernel's.
const USER: &str = "user";
/// perf's name for anonymous memory (`tools/perf/util/dso.c`).
const ANONYMOUS: &str = "//anon";

/// Maximum size of the texts of stacks that are kept, in bytes.
const KEPT_MAX: usize = 64 << 20;
/// Bytes that a kept stack takes beside its text and its addresses.
const STACK: usize = 256;

/// Writes `source` to `out`, in the order of its events.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let weight = source.weight();
    let mut texts = Texts::default();
    source.for_each(|event| {
        write_head(event, weight, out)?;
        out.write_all(texts.of(source, event)?)?;
        Ok(writeln!(out)?)
    })
}

/// The texts of recent stacks: most events have the stack of an earlier one, so that its names need not be looked up
/// again.
#[derive(Default)]
struct Texts {
    /// The texts by process.
    kept: HashMap<i32, HashMap<Option<Stack>, Vec<u8>>>,
    bytes: usize,
}

impl Texts {
    /// The lines of the stack of `event`.
    fn of(&mut self, source: &Source, event: &Event) -> Result<&[u8], ExportError> {
        let is_kept = |kept: &HashMap<_, _>| kept.contains_key(&event.stack);
        if !self.kept.get(&event.pid).is_some_and(is_kept) {
            let mut text = Vec::new();
            for frame in source.frames(event) {
                write_frame(&frame, &mut text)?;
            }
            let addresses = event.stack.as_ref().map_or(0, |stack| stack.frames.len());
            let bytes = STACK + addresses * size_of::<u64>() + text.len();
            if self.bytes + bytes > KEPT_MAX {
                *self = Self::default();
            }
            self.bytes += bytes;
            let process = self.kept.entry(event.pid).or_default();
            process.insert(event.stack.clone(), text);
        }
        let process = self.kept.get(&event.pid);
        let text = process.and_then(|process| process.get(&event.stack));
        Ok(text.map_or(&[], Vec::as_slice))
    }
}

fn write_head(event: &Event, weight: Weight, out: &mut dyn Write) -> io::Result<()> {
    let microseconds = event.time / 1000;
    writeln!(
        out,
        "{:>16} {:>5}/{:<5} [{:03}] {:>5}.{:06}: {:>10} {}: ",
        event.comm,
        number(event.pid),
        number(event.tid),
        event.vcpu,
        microseconds / 1_000_000,
        microseconds % 1_000_000,
        weight.of(event.ticks),
        weight.perf_name()
    )
}

/// A pid that readers accept: they don't know -1 (unknown), and perf itself prints 0 if there is no process.
fn number(id: i32) -> i32 {
    id.max(0)
}

fn write_frame(frame: &Frame<'_>, out: &mut dyn Write) -> io::Result<()> {
    let object = match (frame.is_inlined, frame.is_kernel, frame.module.as_ref()) {
        (true, _, _) => "inlined",
        (_, true, symbolize::KERNEL | HALTED_MODULE) => KERNEL,
        (_, false, symbolize::USER) => USER,
        (_, false, "[anon]") => ANONYMOUS,
        (_, _, module) => module,
    };
    write!(out, "\t{:16x} {}", frame.address, frame.name)?;
    // Readers cut off the last offset. So a name that ends in one itself (`libc.so.6+0x1234`, an unknown function) gets another one.
    let is_unknown = !frame.is_inlined && !frame.is_note();
    if let Some(offset) = frame.offset.or_else(|| is_unknown.then_some(0)) {
        write!(out, "+{offset:#x}")?;
    }
    writeln!(out, " ({object})")
}
