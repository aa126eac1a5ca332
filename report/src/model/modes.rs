//! Counts by mode. Sums saturate.

use kvmprof_recording::Mode;

/// A count for each mode, by [`Mode::index`].
pub type ModeCounts = [u64; Mode::ALL.len()];

/// Adds `others` to `counts`.
pub fn add_modes(counts: &mut ModeCounts, others: ModeCounts) {
    for (count, other) in counts.iter_mut().zip(others) {
        *count = count.saturating_add(other);
    }
}

/// The sum of all modes.
pub fn sum_modes(counts: &ModeCounts) -> u64 {
    counts.iter().copied().fold(0, u64::saturating_add)
}
