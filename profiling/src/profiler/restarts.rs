//! The times at which the guest was restarted, which another thread than the profiler's notes.

use std::sync::Mutex;

use kvmprof_machine::lock::lock;

/// Maximum number of restarts that the profiler hasn't taken yet. The oldest ones beyond it are dropped.
const MAX_UNNOTED: usize = 1024;

/// The restarts of a guest that the profiler hasn't taken yet.
#[derive(Debug, Default)]
pub struct RestartTimes {
    times: Mutex<Vec<u64>>,
}

impl RestartTimes {
    /// Adds a restart at `time`, in ns of CLOCK_MONOTONIC. The caller then rings the profiler's doorbell.
    pub fn add(&self, time: u64) {
        let mut times = lock(&self.times);
        if times.len() >= MAX_UNNOTED {
            times.remove(0);
        }
        times.push(time);
    }

    /// Takes the restarts since the last call, the oldest first.
    pub(super) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.times))
    }
}
