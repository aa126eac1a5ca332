//! Measures the rate of this host's time-stamp counter. A lab machine's counter has the same rate: QEMU's emulation passes on the host's
//! counter, offset by a constant.

use std::arch::x86_64::_rdtsc;
use std::thread;
use std::time::{Duration, Instant};

/// The time between the two readings.
const SPAN: Duration = Duration::from_millis(50);
/// Number of pairs of clock readings; the pair that took the least time is used.
const TRIES: u32 = 20;

/// Measures the rate, in kHz.
pub(crate) fn rate_khz() -> u64 {
    let (first, start) = reading();
    thread::sleep(SPAN);
    let (last, end) = reading();
    let microseconds = end.duration_since(start).as_micros().max(1);
    let ticks = u128::from(last.wrapping_sub(first));
    u64::try_from(ticks * 1000 / microseconds).unwrap_or(u64::MAX)
}

/// The counter and the time at the same moment, as exactly as a busy host allows.
fn reading() -> (u64, Instant) {
    let tries = (0..TRIES).map(|_| {
        let before = counter();
        let now = Instant::now();
        (counter().wrapping_sub(before), before, now)
    });
    let best = tries.min_by_key(|(length, ..)| *length);
    best.map_or_else(
        || (counter(), Instant::now()),
        |(_, ticks, now)| (ticks, now),
    )
}

fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, which touches no memory.
    unsafe { _rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        let (first, second) = (rate_khz(), rate_khz());
        assert!(first > 100_000, "{first} kHz");
        assert!(
            first.abs_diff(second) < first / 100,
            "{first} and {second} kHz"
        );
    }
}
