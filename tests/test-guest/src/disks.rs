//! The results of the workloads `disk` and `disk-writes`. The layout is `struct disk_results` in image/disk/disk.h.

use std::ops::Range;

use kvmprof_demo_guest::{TruthError, i32_at, u32_at, u64_at};

use crate::{IMAGE, text_at};

const SERIAL_OFFSET: usize = 24;
const SERIAL_BYTES: usize = 20;
const STEPS_OFFSET: usize = 48;
const STEP_BYTES: usize = 16;
const STEPS_MAX: usize = 256;
const RESULTS_BYTES: usize = STEPS_OFFSET + STEPS_MAX * STEP_BYTES;

/// Bytes of each write of `disk-writes`, which repeat its number.
pub const DISK_BLOCK: usize = 4096;

/// One attempt of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStep {
    /// What it tries.
    pub name: &'static str,
    /// The expected result: a status of the device (virtio 1.2, section 5.2.6), or -2 if it requests a reset.
    pub expected: i32,
    /// The actual result; -1: none, -3: without a disk, -4: with wrong data.
    pub outcome: i32,
}

/// The workload's results so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskResults {
    /// All attempts.
    pub steps: Vec<DiskStep>,
    /// It has ended.
    pub finished: bool,
    /// The disk's size in sectors.
    pub sectors: u64,
    /// Its queues.
    pub queues: u32,
    /// The features that the workload knows, the low half.
    pub features: u32,
    /// Its serial number.
    pub serial: String,
}

/// The guest-physical addresses of the results, for [`DiskResults::parse`].
///
/// # Errors
/// As [`kvmprof_demo_guest::Image::area`].
pub fn disk_results_area() -> Result<Range<u64>, TruthError> {
    IMAGE.area("kvmprof_disk_results")
}

/// The block of write `number` of `disk-writes`, on a disk with this many.
pub fn block_of_write(number: u64, blocks: u64) -> u64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % blocks
}

impl DiskResults {
    /// Parses a copy of [`disk_results_area`].
    ///
    /// # Errors
    /// The copy is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, TruthError> {
        let short = TruthError::Short(bytes.len(), RESULTS_BYTES);
        let steps = bytes.get(STEPS_OFFSET..RESULTS_BYTES).ok_or(short)?;
        let count = usize::try_from(u32_at(bytes, 0)).unwrap_or(usize::MAX);
        let serial = &bytes[SERIAL_OFFSET..SERIAL_OFFSET + SERIAL_BYTES];
        let serial = serial.iter().take_while(|byte| **byte != 0);
        let step = |bytes: &[u8]| DiskStep {
            name: text_at(u64_at(bytes, 0)).unwrap_or("?"),
            expected: i32_at(bytes, 8),
            outcome: i32_at(bytes, 12),
        };
        Ok(Self {
            steps: (steps.chunks_exact(STEP_BYTES).take(count).map(step)).collect(),
            finished: u32_at(bytes, 4) != 0,
            sectors: u64_at(bytes, 8),
            queues: u32_at(bytes, 16),
            features: u32_at(bytes, 20),
            serial: serial.map(|byte| char::from(*byte)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let area = disk_results_area().unwrap();
        let mut bytes = vec![0; usize::try_from(area.end - area.start).unwrap()];
        bytes[0] = 2;
        bytes[8] = 7;
        bytes[SERIAL_OFFSET] = b'x';
        bytes[STEPS_OFFSET + STEP_BYTES + 8] = 1;
        bytes[STEPS_OFFSET + STEP_BYTES + 12..][..4].fill(0xff);
        let results = DiskResults::parse(&bytes).unwrap();
        assert_eq!((results.steps.len(), results.sectors), (2, 7));
        assert_eq!((results.serial.as_str(), results.finished), ("x", false));
        let step = results.steps[1];
        assert_eq!((step.expected, step.outcome), (1, -1));
        assert!(DiskResults::parse(&bytes[1..]).is_err());
    }
}
