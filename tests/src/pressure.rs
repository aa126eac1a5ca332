//! How busy this host is, in addition to a test's own work.

use std::fs;
use std::time::Instant;

/// Measures how much the threads of this host wait for its processors, from a moment on.
#[derive(Clone, Copy, Debug)]
pub struct CpuPressure {
    begun: Instant,
    waited_us: u64,
}

impl CpuPressure {
    /// Starts to measure.
    pub fn begin() -> Self {
        Self {
            begun: Instant::now(),
            waited_us: waited_us(),
        }
    }

    /// The share of the time until now in which threads waited for a processor. 0 if the kernel does not report it.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 us")]
    pub fn share(&self) -> f64 {
        let waited = waited_us().saturating_sub(self.waited_us);
        let elapsed = self.begun.elapsed().as_secs_f64();
        (waited as f64 * 1e-6 / elapsed.max(1e-6)).min(1.0)
    }
}

/// The time in which at least one thread was runnable but waited for a processor, in us since the host's boot (`/proc/pressure/cpu`, Linux
/// `Documentation/accounting/psi.rst`).
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
