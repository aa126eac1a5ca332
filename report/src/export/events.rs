//! The ticks of a recording one by one, for formats that have their times.

use kvmprof_recording::file::RecordingInfo;
use kvmprof_recording::{COMM_LENGTH, IDLE_PID, Mode};

use crate::budget::{OutputBudget, TooMuch};
use crate::model::{Table, task_name};
use crate::profile::{Process, Profile, Selected, Selection, Watcher};
use crate::symbolize::Resolver;

/// Bytes of the budget that an event takes: itself in memory, and what formats make of it, in memory or written.
const EVENT: usize = 256;
/// The name of a thread without a known name.
const UNKNOWN: &str = "[unknown]";

/// Ticks of one vCPU: one sample, or consecutive ticks for which the vCPU was halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time in ns of CLOCK_MONOTONIC. Of consecutive ticks it is the first one's, computed from the vCPU's last
    /// sample.
    pub time: u64,
    /// The number of ticks.
    pub ticks: u64,
    /// The number of its stack in [`Profile::stacks`]; `None` for a halted vCPU.
    pub stack: Option<u32>,
    /// The number of its thread in `Events::threads`.
    pub thread: u32,
    /// The vCPU's index.
    pub vcpu: u16,
    /// The mode of the vCPU.
    pub mode: Mode,
    /// Whether it is a sample with interrupts off ([`Sample::has_interrupts_off`](kvmprof_recording::Sample::has_interrupts_off)).
    pub has_interrupts_off: bool,
}

/// A thread, as long as it has this name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventThread {
    /// Process id, -1 when unknown, 0 for a halted vCPU.
    pub pid: i32,
    /// Thread id, -1 when unknown, 0 for a halted vCPU.
    pub tid: i32,
    /// The thread's name, with characters that can't be shown replaced. For a halted vCPU it is that of process 0.
    pub comm: String,
}

/// The selected ticks of a recording, in the order of the file: those of a vCPU are in the order of time. They take 32 bytes each, as long as they fit into the
/// recording's budget.
#[derive(Clone, Debug)]
pub struct Events {
    pub(super) events: Vec<Event>,
    /// Their threads, each once for each of its names.
    pub(super) threads: Vec<EventThread>,
    /// The limit of the budget, if it isn't the recording's default.
    limit: Option<u64>,
    budget: OutputBudget,
    /// Why there are no events.
    refused: Option<TooMuch>,
    /// Until all have been read: pid, tid, and name. The first one stands for halted vCPUs.
    read: Table<(i32, i32, [u8; COMM_LENGTH])>,
}

/// Stands for halted vCPUs. No thread has this id.
const HALTED: (i32, i32, [u8; COMM_LENGTH]) = (i32::MIN, i32::MIN, [0; COMM_LENGTH]);

impl Watcher for Events {
    fn begin(&mut self, length: usize, _: &RecordingInfo, _: &Selection, _: &Resolver) {
        self.budget = OutputBudget::limited(self.limit, length);
        self.read.number(HALTED);
    }

    fn take(&mut self, selected: &Selected) {
        let ticks = selected.spread.selected();
        if ticks.idle > 0 {
            self.push(Event {
                time: selected.spread.begin(),
                ticks: ticks.idle,
                stack: None,
                thread: 0,
                vcpu: ticks.vcpu,
                mode: Mode::Idle,
                has_interrupts_off: false,
            });
        }
        if let Some(sample) = &selected.sample {
            let thread = self.read.number((sample.pid, sample.tid, sample.comm));
            self.push(Event {
                time: sample.time,
                ticks: 1,
                stack: selected.stack,
                thread,
                vcpu: sample.vcpu,
                mode: sample.mode,
                has_interrupts_off: sample.has_interrupts_off(),
            });
        }
    }
}

impl Events {
    /// No events yet. They, and all that is made of the recording, take at most `limit` bytes, or what is the default for the recording.
    pub fn new(limit: Option<u64>) -> Self {
        Self {
            events: Vec::new(),
            threads: Vec::new(),
            limit,
            budget: OutputBudget::new(0),
            refused: None,
            read: Table::default(),
        }
    }

    fn push(&mut self, event: Event) {
        if self.refused.is_some() {
            return;
        }
        match self.budget.take(EVENT) {
            Ok(()) => self.events.push(event),
            Err(error) => {
                self.refused = Some(error);
                self.events = Vec::new();
            }
        }
    }

    /// Names the threads, when all events of `profile` have been read. Returns the rest of the budget.
    ///
    /// # Errors
    /// The events don't fit into the budget.
    pub(super) fn finish(&mut self, profile: &Profile) -> Result<OutputBudget, TooMuch> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let unnamed = Process::default();
        let idle = profile.processes.get(&IDLE_PID).unwrap_or(&unnamed);
        let mut threads = Table::default();
        let read = std::mem::take(&mut self.read).into_values().into_iter();
        let numbers = read.map(|thread| {
            threads.number(match thread {
                HALTED => EventThread {
                    pid: IDLE_PID,
                    tid: IDLE_PID,
                    comm: idle.shown_name(IDLE_PID).to_owned(),
                },
                (pid, tid, comm) => EventThread {
                    pid,
                    tid,
                    comm: shown(&comm),
                },
            })
        });
        let numbers: Vec<u32> = numbers.collect();
        for event in &mut self.events {
            event.thread = numbers[event.thread as usize];
        }
        self.threads = threads.into_values();
        Ok(self.budget.clone())
    }
}

fn shown(comm: &[u8; COMM_LENGTH]) -> String {
    let comm = task_name(comm);
    if comm.trim().is_empty() {
        UNKNOWN.to_owned()
    } else {
        comm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_a_name_gets_one() {
        assert_eq!(shown(&[0; COMM_LENGTH]), "[unknown]");
    }
}
