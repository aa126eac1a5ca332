//! The backend of the clock of another program's vCPU: time, and the host scheduler's statistics of the vCPU's thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::attachment::ThreadFiles;
use super::vcpu::LONGEST_SLEEP;
use kvmprof_profiling::clock::{ClockBackend, Grid, RunDelay, ThreadTimes, thread_cpu_ns};

/// The times at which ticks are due. The clock's thread waits for them itself.
#[derive(Clone, Copy, Debug)]
struct DueTimes {
    next: u64,
    period: u64,
}

/// The backend of one vCPU.
#[derive(Debug)]
pub struct AttachedBackend {
    /// The scheduler statistics of the vCPU's thread.
    schedstat: File,
    /// The status of the vCPU's thread.
    stat: File,
    timer: Option<DueTimes>,
    /// The ticks while the vCPU is halted. At each of them the state of the vCPU's thread is read, which doesn't wake it up.
    halted: Option<DueTimes>,
    delay_seen: u64,
    /// The processor time of the calling thread at the last reading, in ns.
    own_time_seen: u64,
    /// The run delay of the calling thread, which makes the ticks.
    own_delay: RunDelay,
}

impl AttachedBackend {
    /// The backend for the thread of `files`.
    ///
    /// # Errors
    /// The thread has ended, or the host's kernel keeps no statistics of threads.
    pub fn new(files: ThreadFiles) -> io::Result<Self> {
        let (Some(schedstat), Some(stat)) = (files.schedstat, files.stat) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let delay_seen = ThreadTimes::read(&schedstat)?.delay;
        Ok(Self {
            schedstat,
            stat,
            timer: None,
            halted: None,
            delay_seen,
            own_time_seen: own_time(),
            own_delay: RunDelay::of_this_thread(),
        })
    }

    /// Another descriptor of the scheduler statistics of the vCPU's thread.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn schedstat(&self) -> io::Result<File> {
        self.schedstat.try_clone()
    }

    /// How long the clock's thread may sleep from `now` (ns) on, unless it is kicked.
    pub fn sleep(&self, now: u64) -> Duration {
        let due = self.timer.as_ref().or(self.halted.as_ref());
        let sleep = |due: &DueTimes| Duration::from_nanos(due.next.saturating_sub(now));
        due.map_or(LONGEST_SLEEP, sleep).min(LONGEST_SLEEP)
    }

    /// Notes that the time is `now`, in ns, and that all ticks before have been seen. True when a tick is due on which a halted vCPU isn't
    /// halted any more.
    pub fn pass(&mut self, now: u64) -> bool {
        let timer = self.timer.as_mut().map(|due| due.pass(now));
        let halted = self.halted.as_mut().map(|due| due.pass(now));
        timer.is_none() && halted == Some(true) && !self.is_asleep()
    }

    /// Whether the vCPU's thread waits for something, as it does while the vCPU is halted.
    fn is_asleep(&self) -> bool {
        let mut line = [0; 512];
        let length = self.stat.read_at(&mut line, 0).unwrap_or_default();
        state(line.get(..length).unwrap_or_default()) == Some(b'S')
    }

    fn times(&self) -> Option<ThreadTimes> {
        // The file of a thread that has ended can't be read.
        ThreadTimes::read(&self.schedstat).ok()
    }
}

impl DueTimes {
    /// Whether a tick was due by `now`; the next one is later.
    fn pass(&mut self, now: u64) -> bool {
        let Some(late) = now.checked_sub(self.next) else {
            return false;
        };
        self.next += (late / self.period + 1) * self.period;
        true
    }
}

/// A thread's state in its line of /proc/PID/stat (proc_pid_stat(5)). Its name, in parentheses, may have any bytes.
fn state(line: &[u8]) -> Option<u8> {
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    line.get(name_end + 2).copied()
}

/// The processor time of the calling thread, in ns.
fn own_time() -> u64 {
    thread_cpu_ns(0).unwrap_or_default()
}

impl ClockBackend for AttachedBackend {
    fn start_timer(&mut self, first: u64, grid: &Grid) {
        self.halted = None;
        self.timer = Some(DueTimes {
            next: first,
            period: grid.period(),
        });
    }

    fn stop_timer(&mut self) {
        self.timer = None;
    }

    /// This alarm rings on the first tick on which the vCPU's thread runs.
    fn start_alarm(&mut self, _run_time: u64) -> bool {
        self.halted = self.timer;
        self.halted.is_some()
    }

    fn stop_alarm(&mut self) {
        self.halted = None;
    }

    /// Always 0: the thread has waited on each tick since the alarm was started.
    fn run_time(&self) -> u64 {
        0
    }

    fn take_run_delay(&mut self) -> u64 {
        let delay = self.times().map_or(self.delay_seen, |times| times.delay);
        let grown = delay.saturating_sub(self.delay_seen);
        self.delay_seen = delay;
        let own_time = own_time();
        let own_grown = own_time.saturating_sub(self.own_time_seen);
        self.own_time_seen = own_time;
        // The vCPU may have waited this long for the clock thread's own work.
        grown.saturating_sub(own_grown)
    }

    fn take_tracer_delay(&mut self) -> u64 {
        self.own_delay.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_state_is_parsed_after_any_name() {
        assert_eq!(state(b"12 (CPU 0/KVM) S 1 2"), Some(b'S'));
        assert_eq!(state(b"12 (a) R (b) R 1 2"), Some(b'R'));
        assert_eq!(state(b"12 (a"), None);
        assert_eq!(state(b"12 (a)"), None);
    }

    #[test]
    fn every_tick_is_due_once() {
        let mut due = DueTimes {
            next: 100,
            period: 10,
        };
        assert!(!due.pass(99));
        assert!(due.pass(100) && !due.pass(109));
        assert!(due.pass(135));
        assert_eq!(due.next, 140);
    }
}
