//! Reads the guest's ground truth from its memory. The layout is `struct truth` in image/kernel.h.

use std::ops::Range;

use crate::bytes::{u32_at, u64_at};
use crate::{IMAGE, Image, ROWS, VCPUS_MAX};

const MAGIC: u64 = u64::from_le_bytes(*b"KVMTRUTH");
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const BLOCK_BYTES: usize = 320;
const ROW_OFFSET: usize = 8;
const SLOTS_OFFSET: usize = 64;
const SLOT_BYTES: usize = 128;
const CYCLES_OFFSET: usize = 16;
const STOLEN_INDEX: usize = 13;
const READ_TRIES: usize = 1000;

/// Why the truth is unavailable.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TruthError {
    /// The image has no such symbol, so it isn't this crate's.
    #[error("The guest's image has no symbol {0}")]
    NoSymbol(&'static str),
    /// More vCPUs than the table has.
    #[error("The guest's table is asked for {0} vCPUs and has room for {VCPUS_MAX}")]
    Vcpus(usize),
    /// The copy is shorter than the table.
    #[error("The copy of the guest's table has {0} bytes; {1} are expected")]
    Short(usize, usize),
    /// The memory holds something else: it is another guest.
    #[error("There is no table of the guest's at its address: is another guest running?")]
    NotThere,
    /// A field has an invalid value.
    #[error("The guest's table is damaged: vCPU {0} runs row {1}")]
    Damaged(usize, u64),
    /// The vCPUs made updates during every try.
    #[error("The guest's table changed during each of {READ_TRIES} tries to read it")]
    Restless,
    /// Guest memory can't be read.
    #[error("Guest memory at {0:#x} can't be read")]
    Memory(u64),
}

/// The time of each row on one vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VcpuTruth {
    /// Transitions so far; 0 until the vCPU has begun to count.
    pub updates: u64,
    /// The present row, an index into [`crate::rows`].
    pub running: usize,
    /// The start of the present row, in TSC cycles as the guest's kernel reads them. Its time isn't in `cycles` yet.
    pub since: u64,
    /// Guest TSC cycles of each row up to the last transition, without stolen ones.
    pub cycles: [u64; ROWS],
    /// TSC cycles in which the host did not run this vCPU, as KVM reported to the guest.
    pub stolen: u64,
}

/// The guest's count of its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// The TSC's frequency in kHz as the guest measured it.
    pub tsc_khz: u64,
    /// One for each vCPU.
    pub vcpus: Vec<VcpuTruth>,
}

fn block(bytes: &[u8], vcpu: usize) -> &[u8] {
    let start = HEADER_BYTES + vcpu * BLOCK_BYTES;
    bytes.get(start..start + BLOCK_BYTES).unwrap_or_default()
}

impl Image {
    /// The guest-physical addresses of the truth of `vcpus` vCPUs, for [`Truth::parse`].
    ///
    /// # Errors
    ///
    /// [`TruthError::Vcpus`] if they are too many, [`TruthError::NoSymbol`] if the image has another kernel.
    pub fn truth_area(&self, vcpus: usize) -> Result<Range<u64>, TruthError> {
        if vcpus > VCPUS_MAX {
            return Err(TruthError::Vcpus(vcpus));
        }
        let Range { start, end } = self.area("kvmprof_truth")?;
        let bytes = HEADER_BYTES + vcpus * BLOCK_BYTES;
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        Ok(start..end.min(start.saturating_add(length)))
    }

    /// The guest-physical address of the row that `vcpu` runs, an index into [`crate::rows`] of 8 bytes. It holds while the program counter is in a function
    /// of a row; elsewhere the guest may be about to change it.
    ///
    /// # Errors
    ///
    /// Those of [`Image::truth_area`].
    pub fn row_place(&self, vcpu: usize) -> Result<u64, TruthError> {
        let truth = self.truth_area(vcpu.saturating_add(1))?;
        Ok(truth.end - (BLOCK_BYTES - ROW_OFFSET) as u64)
    }

    /// Reads the truth of `vcpus` vCPUs while they run. `copy` copies guest memory from a guest-physical address, and
    /// returns whether it succeeded.
    ///
    /// # Errors
    ///
    /// Memory that can't be read, [`TruthError::Restless`], and those of [`Image::truth_area`] and [`Truth::parse`].
    pub fn truth(
        &self,
        vcpus: usize,
        mut copy: impl FnMut(u64, &mut [u8]) -> bool,
    ) -> Result<Truth, TruthError> {
        let area = self.truth_area(vcpus)?;
        let bytes = usize::try_from(area.end - area.start).unwrap_or_default();
        let mut copies = [vec![0; bytes], vec![0; bytes], vec![0; bytes]];
        for _ in 0..READ_TRIES {
            for buffer in &mut copies {
                if !copy(area.start, buffer) {
                    return Err(TruthError::Memory(area.start));
                }
            }
            // This holds for any order within a copy: if a count is the same before and after the middle copy, that
            // copy's valid slot wasn't written meanwhile.
            let [before, taken, after] = &copies;
            let still = (0..vcpus).all(|vcpu| {
                let updates = u64_at(block(taken, vcpu), 0);
                u64_at(block(before, vcpu), 0) == updates
                    && u64_at(block(after, vcpu), 0) == updates
            });
            if still {
                return Truth::parse(taken, vcpus);
            }
        }
        Err(TruthError::Restless)
    }
}

impl Truth {
    /// Parses a copy of [`Image::truth_area`] that was made while no vCPU ran. The vCPUs may have stopped anywhere.
    ///
    /// # Errors
    ///
    /// The copy is too short, or isn't this guest's.
    pub fn parse(bytes: &[u8], vcpus: usize) -> Result<Self, TruthError> {
        if vcpus > VCPUS_MAX {
            return Err(TruthError::Vcpus(vcpus));
        }
        let needed = HEADER_BYTES + vcpus * BLOCK_BYTES;
        if bytes.len() < needed {
            return Err(TruthError::Short(bytes.len(), needed));
        }
        let known = u64_at(bytes, 0) == MAGIC
            && u32_at(bytes, 8) == VERSION
            && usize::try_from(u32_at(bytes, 12)) == Ok(ROWS)
            && usize::try_from(u32_at(bytes, 20)) == Ok(BLOCK_BYTES);
        if !known {
            return Err(TruthError::NotThere);
        }
        Ok(Self {
            tsc_khz: u64_at(bytes, 24),
            vcpus: (0..vcpus)
                .map(|vcpu| parse_block(block(bytes, vcpu), vcpu))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Reads the demo guest's truth while its vCPUs run, as [`Image::truth`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Image::truth`].
    pub fn read(
        vcpus: usize,
        copy: impl FnMut(u64, &mut [u8]) -> bool,
    ) -> Result<Self, TruthError> {
        IMAGE.truth(vcpus, copy)
    }

    /// Cycles of each row, summed over the vCPUs.
    pub fn cycles(&self) -> [u64; ROWS] {
        let mut sums = [0u64; ROWS];
        for vcpu in &self.vcpus {
            for (sum, cycles) in sums.iter_mut().zip(vcpu.cycles) {
                *sum = sum.saturating_add(cycles);
            }
        }
        sums
    }

    /// Cycles of each row, summed over the vCPUs, since an earlier reading.
    pub fn cycles_since(&self, earlier: &Self) -> [u64; ROWS] {
        let mut sums = self.cycles();
        for (sum, before) in sums.iter_mut().zip(earlier.cycles()) {
            *sum = sum.saturating_sub(before);
        }
        sums
    }
}

fn parse_block(block: &[u8], vcpu: usize) -> Result<VcpuTruth, TruthError> {
    let updates = u64_at(block, 0);
    let start = SLOTS_OFFSET
        + if updates.is_multiple_of(2) {
            0
        } else {
            SLOT_BYTES
        };
    let slot = block.get(start..start + SLOT_BYTES).unwrap_or_default();
    let row = u64_at(slot, 0);
    let running = usize::try_from(row)
        .ok()
        .filter(|running| *running < ROWS)
        .ok_or(TruthError::Damaged(vcpu, row))?;
    let mut cycles = [0; ROWS];
    for (index, cycles) in cycles.iter_mut().enumerate() {
        *cycles = at_least_zero(u64_at(slot, CYCLES_OFFSET + 8 * index));
    }
    Ok(VcpuTruth {
        updates,
        running,
        since: u64_at(slot, 8),
        cycles,
        stolen: u64_at(slot, CYCLES_OFFSET + 8 * STOLEN_INDEX),
    })
}

/// Stolen time may be subtracted from the row after the one in which it occurred, which can make that row negative.
fn at_least_zero(cycles: u64) -> u64 {
    if cycles.cast_signed() < 0 { 0 } else { cycles }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(vcpus: usize) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + vcpus * BLOCK_BYTES];
        bytes[..8].copy_from_slice(b"KVMTRUTH");
        bytes[8] = 1;
        bytes[12] = u8::try_from(ROWS).unwrap();
        bytes[20..24].copy_from_slice(&320u32.to_le_bytes());
        bytes[24..32].copy_from_slice(&2_600_000u64.to_le_bytes());
        bytes
    }

    fn put(bytes: &mut [u8], vcpu: usize, offset: usize, value: u64) {
        let at = HEADER_BYTES + vcpu * BLOCK_BYTES + offset;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    #[test]
    fn the_valid_slot_is_read() {
        let mut bytes = table(2);
        put(&mut bytes, 1, 0, 3);
        for (slot, row) in [(64, 4), (192, 5)] {
            put(&mut bytes, 1, slot, row);
            put(&mut bytes, 1, slot + 8, 1000 + row);
            put(&mut bytes, 1, slot + 16 + 8 * 2, 100 + row);
            put(&mut bytes, 1, slot + 16 + 8 * 13, row);
        }
        let odd = Truth::parse(&bytes, 2).unwrap();
        assert_eq!(odd.tsc_khz, 2_600_000);
        assert_eq!(odd.vcpus[0], VcpuTruth::default());
        let vcpu = &odd.vcpus[1];
        assert_eq!((vcpu.updates, vcpu.running, vcpu.since), (3, 5, 1005));
        assert_eq!((vcpu.cycles[2], vcpu.stolen), (105, 5));
        assert_eq!(odd.cycles()[2], 105);

        put(&mut bytes, 1, 0, 4);
        let even = Truth::parse(&bytes, 2).unwrap();
        assert_eq!((even.vcpus[1].running, even.vcpus[1].cycles[2]), (4, 104));
        assert_eq!(odd.cycles_since(&even)[2], 1);
        assert_eq!(even.cycles_since(&odd)[2], 0);
    }

    #[test]
    fn invalid_tables_are_refused() {
        let good = table(1);
        assert!(Truth::parse(&good, 1).is_ok());
        for damaged in [0, 8, 12, 20] {
            let mut bytes = good.clone();
            bytes[damaged] ^= 0x80;
            assert_eq!(Truth::parse(&bytes, 1), Err(TruthError::NotThere));
        }
        assert_eq!(Truth::parse(&good, 2), Err(TruthError::Short(384, 704)));
        assert_eq!(Truth::parse(&good, 65), Err(TruthError::Vcpus(65)));
        let mut bytes = good.clone();
        put(&mut bytes, 0, 64, 9);
        assert_eq!(Truth::parse(&bytes, 1), Err(TruthError::Damaged(0, 9)));
    }

    #[test]
    fn negative_cycles_count_as_zero() {
        let mut bytes = table(1);
        put(&mut bytes, 0, 64 + 16, u64::MAX);
        assert_eq!(Truth::parse(&bytes, 1).unwrap().vcpus[0].cycles[0], 0);
    }

    #[test]
    fn a_reading_waits_for_two_equal_counts_around_it() {
        // The count that each copy has.
        let read = |count: fn(u64) -> u64| {
            let mut copies = 0;
            let truth = Truth::read(1, |_, buffer| {
                buffer.copy_from_slice(&table(1));
                put(buffer, 0, 0, count(copies));
                copies += 1;
                true
            });
            truth.map(|truth| (truth.vcpus[0].updates, copies))
        };
        // Copies 0 to 3 have one count, 4 to 7 the next: 0 to 2 are good at once.
        assert_eq!(read(|copy| copy / 4 * 2), Ok((0, 3)));
        assert_eq!(read(|copy| copy.min(2)), Ok((2, 6)));
        assert_eq!(read(|copy| copy), Err(TruthError::Restless));
        let unreadable = Truth::read(1, |_, _| false);
        assert!(matches!(unreadable, Err(TruthError::Memory(_))));
    }

    #[test]
    fn the_image_has_an_empty_table_of_this_size() {
        let truth = IMAGE.symbol("kvmprof_truth").unwrap();
        let size = HEADER_BYTES + VCPUS_MAX * BLOCK_BYTES;
        assert_eq!(truth.size, size as u64);
        let area = IMAGE.truth_area(2).unwrap();
        assert_eq!((area.start, area.end - area.start), (truth.address, 704));
        assert_eq!(IMAGE.truth_area(65), Err(TruthError::Vcpus(65)));
    }
}
