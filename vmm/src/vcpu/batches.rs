//! How long samples of the host's kernel wait in their ring.

use kvmprof_abi::pcs::{BSIZE, DEF_BUFNO};

/// Maximum time that samples wait while the vCPU runs, in ns. Each batch costs the guest an exit.
const LONGEST_WAIT: u64 = 250_000_000;
/// Size of a sample's record in pcs, in bytes.
const RECORD_BYTES: usize = 16;
/// Maximum number of samples that all vCPUs together deliver at once: half of pcs's default buffers, so that a reader
/// with these buffers loses none.
const BATCH: u64 = (DEF_BUFNO * BSIZE / RECORD_BYTES / 2) as u64;
/// Minimum time that samples wait, in ns: the profiler doesn't look more often.
const SHORTEST_WAIT: u64 = 10_000_000;

/// The pause between two looks into the ring by another thread: this number of periods, within these bounds (ns), and no longer than half of the
/// ring takes to fill.
const PERIODS: u64 = 100;
const SHORTEST: u64 = 10_000_000;
const LONGEST: u64 = 100_000_000;

/// The time that the thread of one of `vcpus` vCPUs runs until its samples are taken, if its ring has `room` for this many samples. Half of
/// the ring is kept for a thread that takes them late.
pub fn batch_ns(period: u64, room: u64, vcpus: usize) -> u64 {
    let samples = |count: u64| period.saturating_mul(count);
    let share = BATCH / u64::try_from(vcpus.max(1)).unwrap_or(u64::MAX);
    let wanted = samples(share).clamp(SHORTEST_WAIT, LONGEST_WAIT);
    wanted.min(samples(room / 2)).max(period)
}

/// The pause between two looks into the ring by another thread than the vCPU's. The ring has `room` for this many samples, if there is one.
pub fn pause_ns(period: u64, room: Option<u64>) -> u64 {
    let half = room.map_or(PERIODS, |room| room / 2);
    period
        .saturating_mul(PERIODS.min(half))
        .clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_fits_into_half_of_the_ring() {
        for hz in [1, 2, 10, 100, 1_000, 5_000, 10_000] {
            for (room, vcpus) in [(1, 1), (2, 1), (80, 2), (1000, 1), (1000, 64)] {
                let period = 1_000_000_000 / hz;
                let wait = batch_ns(period, room, vcpus);
                let samples = wait / period;
                assert!((1..=(room / 2).max(1)).contains(&samples), "{hz} {room}");
                assert!(samples * vcpus as u64 <= BATCH || wait <= SHORTEST_WAIT.max(period));
                assert!(wait <= LONGEST_WAIT.max(period));
            }
        }
    }
}
