//! The counters of counting workloads. The layout is `struct counter` in image/workloads/counters.h.

use std::ops::Range;

use kvmprof_demo_guest::{TruthError, VCPUS_MAX, u64_at};

use crate::IMAGE;

const COUNTER_BYTES: usize = 64;

/// Exits of the workload `exits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// By process 102, in `exit_by_port_read`.
    pub port_reads: u64,
    /// By process 101, in `exit_by_port_write`, in user mode.
    pub port_writes: u64,
    /// By process 103, in `exit_by_mmio_read`.
    pub mmio_reads: u64,
    /// By process 201, in `exit_by_mmio_write`.
    pub mmio_writes: u64,
}

/// A vCPU's counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Rounds so far.
    pub rounds: u64,
    /// Wrong values seen so far.
    pub errors: u64,
    /// Number of times that `gaps` was kept from running for longer than a loop takes, but not so long
    /// that the host must have run something else.
    pub gaps: u64,
    /// TSC cycles of those gaps in total.
    pub gap_cycles: u64,
    /// Exits made on purpose.
    pub exits: Exits,
}

/// The guest-physical addresses of the counters of this number of vCPUs, for [`counters`].
///
/// # Errors
///
/// [`TruthError::Vcpus`] if they are too many.
pub fn counters_area(vcpus: usize) -> Result<Range<u64>, TruthError> {
    if vcpus > VCPUS_MAX {
        return Err(TruthError::Vcpus(vcpus));
    }
    let Range { start, end } = IMAGE.area("kvmprof_counters")?;
    let length = u64::try_from(vcpus * COUNTER_BYTES).unwrap_or(u64::MAX);
    Ok(start..end.min(start.saturating_add(length)))
}

/// The counters in a copy of [`counters_area`], one for each vCPU.
pub fn counters(bytes: &[u8]) -> Vec<Counter> {
    bytes
        .chunks_exact(COUNTER_BYTES)
        .map(|counter| Counter {
            rounds: u64_at(counter, 0),
            errors: u64_at(counter, 8),
            gaps: u64_at(counter, 16),
            gap_cycles: u64_at(counter, 24),
            exits: Exits {
                port_reads: u64_at(counter, 32),
                port_writes: u64_at(counter, 40),
                mmio_reads: u64_at(counter, 48),
                mmio_writes: u64_at(counter, 56),
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_counters_of_this_size() {
        let all = counters_area(VCPUS_MAX).unwrap();
        assert_eq!(all.end - all.start, 4096);
        assert_eq!(IMAGE.symbol("kvmprof_counters").unwrap().size, 4096);
        assert_eq!(counters_area(65), Err(TruthError::Vcpus(65)));
    }

    #[test]
    fn counters_are_read() {
        let mut bytes = vec![0; 2 * COUNTER_BYTES];
        bytes[64] = 7;
        bytes[72] = 8;
        bytes[80] = 9;
        bytes[88] = 10;
        bytes[96] = 11;
        bytes[120] = 12;
        let expected = [
            Counter::default(),
            Counter {
                rounds: 7,
                errors: 8,
                gaps: 9,
                gap_cycles: 10,
                exits: Exits {
                    port_reads: 11,
                    mmio_writes: 12,
                    ..Exits::default()
                },
            },
        ];
        assert_eq!(counters(&bytes), expected);
    }
}
