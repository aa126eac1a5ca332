//! Measures for how long a machine could run, and for how long it has been silent, without the time that a busy host took from it.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// By thread id, the time in ns that the thread has waited for a processor while it could have run.
type RunDelays = BTreeMap<u32, u64>;

/// Measures for how long a process could run. Time in which the host gave it no processor isn't counted: on a busy host a machine is slow,
/// but it doesn't hang.
pub(crate) struct OwnTime {
    process: u32,
    since: Instant,
    delays: RunDelays,
}

impl OwnTime {
    /// Starts to measure, for the process with this id.
    pub(crate) fn new(process: u32) -> Self {
        Self {
            process,
            since: Instant::now(),
            delays: run_delays(process),
        }
    }

    /// For how long the process could run since then.
    pub(crate) fn elapsed(&self) -> Duration {
        own_time(
            self.since.elapsed(),
            &self.delays,
            &run_delays(self.process),
        )
    }
}

/// Measures for how long a process has been silent while it could run.
pub(crate) struct SilenceTimer<'a> {
    bytes: &'a AtomicU64,
    seen: u64,
    time: OwnTime,
}

impl<'a> SilenceTimer<'a> {
    /// Starts to measure. `bytes` counts the output of the process with this id.
    pub(crate) fn new(process: u32, bytes: &'a AtomicU64) -> Self {
        Self {
            bytes,
            seen: bytes.load(Ordering::Relaxed),
            time: OwnTime::new(process),
        }
    }

    /// Starts to measure again.
    pub(crate) fn begin(&mut self) {
        *self = Self::new(self.time.process, self.bytes);
    }

    /// For how long the process has been silent. Only these calls detect output, so they should be much more frequent than the limit for
    /// the result.
    pub(crate) fn time(&mut self) -> Duration {
        if self.bytes.load(Ordering::Relaxed) != self.seen {
            self.begin();
        }
        self.time.elapsed()
    }
}

/// The part of `elapsed` in which no thread waited for a processor, assuming that the waits of several threads overlap.
fn own_time(elapsed: Duration, before: &RunDelays, now: &RunDelays) -> Duration {
    let waited = now
        .iter()
        .map(|(thread, delay)| delay.saturating_sub(before.get(thread).copied().unwrap_or(0)))
        .max()
        .unwrap_or(0);
    elapsed.saturating_sub(Duration::from_nanos(waited))
}

/// The second number in `/proc/PID/task/TID/schedstat` (Linux, `Documentation/scheduler/sched-stats.rst`) by thread id. On a host that
/// doesn't count it the map is empty, so that all time is counted.
fn run_delays(process: u32) -> RunDelays {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads
        .filter_map(|thread| {
            let id = thread.file_name().to_str()?.parse().ok()?;
            // The thread may have ended meanwhile.
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            Some((id, text.split_whitespace().nth(1)?.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_delay_is_not_silence() {
        let seconds = |delays: &[(u32, u64)]| -> RunDelays {
            let ns = |(thread, delay): &(u32, u64)| (*thread, delay * 1_000_000_000);
            delays.iter().map(ns).collect()
        };
        let before = seconds(&[(1, 5), (2, 100)]);
        for (now, expected) in [
            (seconds(&[(1, 5), (2, 100)]), 60),
            (seconds(&[(1, 45), (2, 130)]), 20),
            // One thread is new, and one has ended.
            (seconds(&[(2, 100), (3, 7)]), 53),
            (seconds(&[(2, 170)]), 0),
            (RunDelays::new(), 60),
        ] {
            let own = own_time(Duration::from_secs(60), &before, &now);
            assert_eq!(own, Duration::from_secs(expected), "{now:?}");
        }
    }

    #[test]
    fn output_ends_the_silence() {
        let bytes = AtomicU64::new(7);
        let mut quiet = SilenceTimer::new(std::process::id(), &bytes);
        let start = quiet.time.since;
        quiet.time();
        assert_eq!(quiet.time.since, start);
        bytes.store(8, Ordering::Relaxed);
        quiet.time();
        assert!(quiet.time.since > start && quiet.seen == 8);
    }

    #[test]
    fn the_host_lists_each_thread() {
        // The tests' threads exist beside the main one.
        assert!(run_delays(std::process::id()).len() >= 2);
    }
}
