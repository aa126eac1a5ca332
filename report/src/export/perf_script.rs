//! Text like that of `perf script -F comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso`
//! (`tools/perf/Documentation/perf-script.txt` of the Linux sources; `tools/perf/builtin-script.c` defines the form).
//! With call chains perf doesn't pad the thread's name, and readers refuse a line that begins with a blank.
//! For them a name has two characters at least, the first word of digits is the pid, and a blank ends a file's name.
//!
//! An event is a tick: of the clock, `cpu-clock` with its period in ns, or by its own name with their number. Ticks of a halted vCPU are one event with their
//! total period. perf has no field for the mode: the frames' objects show kernel and user (`[kernel.kallsyms]`, modules in brackets, files by their names),
//! and an entry function among the frames shows interrupts. An inlined function has `inlined` as its object, as in perf.

use std::io::{self, Write};

use super::{Event, ExportError, Source};
use crate::model::{Frame, HALTED_MODULE};
use crate::profile::Weight;
use crate::symbolize;

/// perf's name for a kernel (`machine__mmap_name`, `tools/perf/util/machine.c`).
const KERNEL: &str = "[kernel.kallsyms]";
/// The object of user frames in unknown files. Readers take names in brackets for the kernel's.
const USER: &str = "user";
/// perf's name for anonymous memory (`tools/perf/util/dso.c`).
const ANONYMOUS: &str = "//anon";

/// Maximum size of the texts of stacks that are kept, in bytes.
const KEPT_MAX: usize = 64 << 20;
/// Bytes that a kept stack takes beside its text.
const STACK: usize = 64;

/// Writes `source` to `out`, by time.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let weight = source.weight();
    let mut texts = Texts::new(source);
    let mut heads = vec![None; source.threads()];
    source.for_each_by_time(|event| {
        let head = &mut heads[event.thread as usize];
        let head = head.get_or_insert_with(|| head_of(source, event));
        write_head(head, event, weight, out)?;
        Ok(out.write_all(texts.of(source, event)?)?)
    })
}

/// The texts of recent stacks: most events have the stack of an earlier one, so that its names need not be written
/// again.
struct Texts {
    /// The texts, by the stacks' numbers; those that aren't kept are empty.
    kept: Vec<Vec<u8>>,
    bytes: usize,
}

impl Texts {
    fn new(source: &Source) -> Self {
        Self {
            kept: vec![Vec::new(); source.stacks() + 1],
            bytes: 0,
        }
    }

    /// The lines of the stack of `event`, and the empty line behind them.
    fn of(&mut self, source: &Source, event: &Event) -> Result<&[u8], ExportError> {
        let number = source.stack_number(event);
        if self.kept[number].is_empty() {
            let mut text = Vec::new();
            for frame in source.frames(event) {
                write_frame(&frame, &mut text)?;
            }
            text.push(b'\n');
            let bytes = STACK + text.len();
            if self.bytes + bytes > KEPT_MAX {
                *self = Self::new(source);
            }
            self.bytes += bytes;
            self.kept[number] = text;
        }
        Ok(&self.kept[number])
    }
}

/// The start of the lines of events of a thread.
fn head_of(source: &Source, event: &Event) -> String {
    let thread = source.thread(event);
    let (pid, tid) = (number(thread.pid), number(thread.tid));
    format!("{:<2} {pid:>5}/{tid:<5} ", name(&thread.comm))
}

fn write_head(head: &str, event: &Event, weight: Weight, out: &mut dyn Write) -> io::Result<()> {
    let microseconds = event.time / 1000;
    writeln!(
        out,
        "{head}[{:03}] {:>5}.{:06}: {:>10} {}: ",
        event.vcpu,
        microseconds / 1_000_000,
        microseconds % 1_000_000,
        weight.of(event.ticks),
        weight.perf_name()
    )
}

/// A thread's name that readers take for the whole name, and for no comment: without a blank at its start or before a digit.
fn name(comm: &str) -> String {
    let is_digit = |next: Option<char>| next.is_some_and(|next| next.is_ascii_digit());
    let mut name = String::with_capacity(comm.len());
    let mut characters = comm.chars().peekable();
    while let Some(character) = characters.next() {
        let is_blank = character.is_whitespace();
        let is_taken_for_another = match name.is_empty() {
            true => is_blank || character == '#',
            false => is_blank && is_digit(characters.peek().copied()),
        };
        name.push(if is_taken_for_another { '_' } else { character });
    }
    name
}

/// A pid that readers accept: they don't know -1 (unknown), and 0 is that of the threads that idle.
fn number(id: i32) -> u32 {
    id.cast_unsigned()
}

fn write_frame(frame: &Frame<'_>, out: &mut dyn Write) -> io::Result<()> {
    let object = match (frame.is_inlined, frame.is_kernel, &**frame.module) {
        (true, _, _) => "inlined",
        (_, true, symbolize::KERNEL | HALTED_MODULE) => KERNEL,
        (_, false, symbolize::USER) => USER,
        (_, false, "[anon]") => ANONYMOUS,
        (_, _, module) => module,
    };
    write!(out, "\t{:16x} {}", frame.address, frame.name)?;
    // Readers cut off the last offset. So a name that ends in one itself (`libc.so.6+0x1234`, an unknown function) gets another one.
    let is_unknown = !frame.is_inlined && !frame.is_note;
    if let Some(offset) = frame.offset.or_else(|| is_unknown.then_some(0)) {
        write!(out, "+{offset:#x}")?;
    }
    let object = object.replace(char::is_whitespace, "_");
    writeln!(out, " ({object})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_end_before_the_pid() {
        for (comm, expected) in [
            ("server", "server"),
            ("server worker", "server worker"),
            ("pool 7", "pool_7"),
            ("a 1/2 b 3", "a_1/2 b_3"),
            (" first", "_first"),
            ("# comment", "_ comment"),
            ("a  9", "a _9"),
        ] {
            assert_eq!(name(comm), expected);
        }
    }
}
