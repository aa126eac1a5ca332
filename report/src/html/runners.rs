//! The threads of the page.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use kvmprof_recording::{COMM_LENGTH, IDLE_PID, Sample};

/// Maximum number of threads with numbers of their own.
const MAX_RUNNERS: usize = 20_000;
/// The pid and tid of all further threads. No process or thread of a page has this number.
pub const OTHERS: i32 = i32::MIN;

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runner {
    /// The number of its recording.
    pub recording: u32,
    /// Its process; -1 if unknown, [`OTHERS`] beyond the maximum.
    pub pid: i32,
    /// Its id; -1 if unknown, [`OTHERS`] beyond the maximum.
    pub tid: i32,
    /// Its last known name; all NUL if unknown.
    pub comm: [u8; COMM_LENGTH],
}

/// All threads, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Runners {
    all: Vec<Runner>,
    numbers: HashMap<(u32, i32, i32), u32, RandomState>,
}

impl Runners {
    /// The number of the thread of `sample`.
    pub fn of(&mut self, sample: &Sample) -> u32 {
        let number = self.number(0, sample.pid, sample.tid);
        if let Some(runner) = self.all.get_mut(number as usize)
            && sample.comm[0] != 0
            && runner.tid == sample.tid
        {
            runner.comm = sample.comm;
        }
        number
    }

    /// Adds a thread of any recording, and returns its number.
    pub fn add(&mut self, runner: &Runner) -> u32 {
        let number = self.number(runner.recording, runner.pid, runner.tid);
        if let Some(known) = self.all.get_mut(number as usize)
            && known.tid == runner.tid
        {
            known.comm = runner.comm;
        }
        number
    }

    /// The number of the idle thread of a recording, to which ticks of halted vCPUs belong.
    pub fn idle(&mut self, recording: u32) -> u32 {
        self.number(recording, IDLE_PID, IDLE_PID)
    }

    fn number(&mut self, recording: u32, pid: i32, tid: i32) -> u32 {
        if let Some(number) = self.numbers.get(&(recording, pid, tid)) {
            return *number;
        }
        // The maximum doesn't apply to idle threads.
        if self.all.len() >= MAX_RUNNERS && pid != IDLE_PID && pid != OTHERS {
            return self.number(recording, OTHERS, OTHERS);
        }
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        self.numbers.insert((recording, pid, tid), number);
        self.all.push(Runner {
            recording,
            pid,
            tid,
            comm: [0; COMM_LENGTH],
        });
        number
    }

    /// All threads, by number.
    pub fn all(&self) -> &[Runner] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_of_endless_threads_has_some() {
        let mut runners = Runners::default();
        let sample = |number| Sample {
            pid: number,
            tid: number,
            comm: [b'a'; COMM_LENGTH],
            ..Sample::default()
        };
        for number in 1..100_000 {
            runners.of(&sample(number));
        }
        assert_eq!(runners.of(&sample(7)), 6);
        let others = runners.of(&sample(99_999));
        assert_eq!(runners.all()[others as usize].pid, OTHERS);
        let idle = runners.idle(0);
        assert_eq!(runners.all()[idle as usize].pid, IDLE_PID);
        assert_eq!(runners.all().len(), MAX_RUNNERS + 2);
    }
}
