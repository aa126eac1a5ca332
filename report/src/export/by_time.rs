//! A recording's events in the order of time, whichever vCPU they are of.
//!
//! A recording has blocks of each vCPU's ticks, and ticks of a halted vCPU come once it runs again. perf
//! sorts its events, and readers of its text refuse a thread whose times go backwards.

use super::interned::Interned;
use super::{Event, ExportError, Source};
use crate::profile::Stack;
use kvmprof_recording::Mode;

/// Bytes that a stack takes in the table, beside its addresses.
const STACK: usize = 128;

/// An event: what is only its own, and the numbers of its thread and of its stack. It has half of the room that events are given.
struct Row {
    time: u64,
    ticks: u64,
    thread: u32,
    stack: u32,
    vcpu: u16,
    mode: Mode,
    has_interrupts_off: bool,
}

/// Calls `each` for all events, as [`Source::for_each`] does, but by time; those of the same time in the order of the file.
pub fn for_each_by_time(
    source: &Source,
    mut each: impl FnMut(&Event) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let mut threads = Interned::new("threads");
    let mut stacks: Interned<Option<Stack>> = Interned::new("stacks");
    let mut rows = Vec::new();
    source.for_each(|event| {
        let (stack, is_new) = stacks.number(event.stack.clone())?;
        if is_new {
            let addresses = event.stack.as_ref().map_or(0, |stack| stack.frames.len());
            source.room().take(STACK + addresses * size_of::<u64>())?;
        }
        rows.push(Row {
            time: event.time,
            ticks: event.ticks,
            thread: threads
                .number((event.pid, event.tid, event.comm.clone()))?
                .0,
            stack,
            vcpu: event.vcpu,
            mode: event.mode,
            has_interrupts_off: event.has_interrupts_off,
        });
        Ok(())
    })?;
    rows.sort_by_key(|row| row.time);
    let (threads, stacks) = (threads.into_ordered(), stacks.into_ordered());
    for row in rows {
        let (pid, tid, comm) = &threads[row.thread as usize];
        each(&Event {
            time: row.time,
            ticks: row.ticks,
            vcpu: row.vcpu,
            mode: row.mode,
            pid: *pid,
            tid: *tid,
            comm: comm.clone(),
            stack: stacks[row.stack as usize].clone(),
            has_interrupts_off: row.has_interrupts_off,
        })?;
    }
    Ok(())
}
