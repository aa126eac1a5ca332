//! How long the host let a runnable thread wait for a processor.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The calling thread's run delay, out of `/proc/thread-self/schedstat` (Linux
/// `Documentation/scheduler/sched-stats.rst`: time on the processor, time waiting for it, slices).
#[derive(Debug)]
pub struct RunDelay {
    schedstat: Option<File>,
    seen: u64,
}

impl RunDelay {
    /// For the calling thread. On a host without scheduler statistics nothing is ever explained.
    pub fn of_this_thread() -> Self {
        let mut delay = Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            seen: 0,
        };
        delay.take();
        delay
    }

    /// The run delay since the last call, in ns.
    pub fn take(&mut self) -> u64 {
        let total = self.read().unwrap_or(self.seen);
        let grown = total.saturating_sub(self.seen);
        self.seen = total;
        grown
    }

    fn read(&self) -> Option<u64> {
        let mut text = [0u8; 96];
        let length = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(text.get(..length)?)
    }
}

fn parse(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text)
        .ok()?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_second_field() {
        assert_eq!(parse(b"123 456 7\n"), Some(456));
        assert_eq!(parse(b"123\n"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn the_kernel_has_it() {
        assert!(RunDelay::of_this_thread().read().is_some());
    }
}
