//! How busy this host is, beside what a test does itself.

use std::fs;
use std::time::Instant;

/// Measures how much the threads of this host wait for its processors, from one moment on.
#[derive(Clone, Copy, Debug)]
pub struct CpuPressure {
    begun: Instant,
    waited_us: u64,
}

impl CpuPressure {
    /// Measures from now on.
    pub fn begin() -> Self {
        Self {
            begun: Instant::now(),
            waited_us: waited_us(),
        }
    }

    /// The part of the time until now in which threads waited for a processor, as a part of 1. 0 where the kernel
    /// does not say.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 us")]
    pub fn share(&self) -> f64 {
        let waited = waited_us().saturating_sub(self.waited_us);
        let elapsed = self.begun.elapsed().as_secs_f64();
        (waited as f64 * 1e-6 / elapsed.max(1e-6)).min(1.0)
    }
}

/// For how long one thread or more has been runnable but waited for a processor, in us since the host's boot
/// (`/proc/pressure/cpu`, Linux `Documentation/accounting/psi.rst`).
fn waited_us() -> u64 {
    let text = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    total_of_some(&text).unwrap_or(0)
}

fn total_of_some(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split(' ').find_map(|word| word.strip_prefix("total="));
    total?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_total_time_with_waiting_threads() {
        let text = "some avg10=0.54 avg60=0.97 avg300=3.63 total=32133405\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total_of_some(text), Some(32_133_405));
        assert_eq!(total_of_some(""), None);
    }
}
