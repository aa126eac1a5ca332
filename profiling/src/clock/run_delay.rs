//! How long the host let a runnable thread wait for a processor.

use std::fs::File;

use super::ThreadTimes;

/// The run delay of one thread.
#[derive(Debug)]
pub struct RunDelay {
    // None if the kernel has no schedstat.
    schedstat: Option<File>,
    seen: u64,
}

impl RunDelay {
    /// The run delay of the calling thread, from now on.
    pub fn of_this_thread() -> Self {
        let mut delay = Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            seen: 0,
        };
        delay.take();
        delay
    }

    /// How much it has grown since the last call, in ns.
    pub fn take(&mut self) -> u64 {
        let total = self.read().unwrap_or(self.seen);
        let grown = total.saturating_sub(self.seen);
        self.seen = total;
        grown
    }

    fn read(&self) -> Option<u64> {
        let times = ThreadTimes::read(self.schedstat.as_ref()?).ok()?;
        Some(times.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reports_run_delay() {
        assert!(RunDelay::of_this_thread().read().is_some());
    }
}
