//! Text as `perf script -F comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso` prints it
//! (`tools/perf/Documentation/perf-script.txt` of the Linux sources; `tools/perf/builtin-script.c` is the form).
//!
//! An event is a tick of the clock, `cpu-clock` with its period in ns. Ticks of a halted vCPU are one event with the
//! period of all. perf has no place for the mode: kernel and user are told apart by the frames' objects, which are
//! `[guest.kernel.kallsyms]`, modules in brackets, and files by their names, and interrupts by their entry among the
//! frames. An inlined function has the word in the object's place, as perf has it.

use std::io::{self, Write};

use super::{Event, ExportError, Frame, Source};
use crate::profile::HALTED_MODULE;
use crate::symbolize;

/// What perf calls a guest's kernel (`machine__mmap_name`, `tools/perf/util/machine.c`).
const KERNEL: &str = "[guest.kernel.kallsyms]";
/// The object of user frames whose file isn't known. Readers take names in brackets for the kernel's.
const USER: &str = "user";
/// What perf calls memory that no file is mapped in (`tools/perf/util/dso.c`).
const ANONYMOUS: &str = "//anon";

/// Writes `source` to `out`, as its events come.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let period = source.period_ns();
    source.for_each(|event| {
        write_head(event, period, out)?;
        for frame in source.frames(event) {
            write_frame(&frame, out)?;
        }
        Ok(writeln!(out)?)
    })
}

fn write_head(event: &Event, period: u64, out: &mut dyn Write) -> io::Result<()> {
    let microseconds = event.time / 1000;
    writeln!(
        out,
        "{:>16} {:>5}/{:<5} [{:03}] {:>5}.{:06}: {:>10} cpu-clock: ",
        event.comm,
        number(event.pid),
        number(event.tid),
        event.vcpu,
        microseconds / 1_000_000,
        microseconds % 1_000_000,
        period.saturating_mul(event.ticks)
    )
}

/// A pid as readers take it: -1, unknown, is none that they know; perf itself prints 0 for what is no process.
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
    if let Some(offset) = frame.offset {
        write!(out, "+{offset:#x}")?;
    }
    writeln!(out, " ({object})")
}
