//! Lists the mapped pages of a range of virtual addresses. Reads whole page tables.

use std::ops::Range;

use vm_memory::GuestAddress;

use super::PhysicalMemory;
use super::address_space::{AddressSpace, FRAME, LARGE, PAGE, PRESENT, Paging, is_canonical};
use crate::bytes::u64_at;

/// Entries of a page table.
const ENTRIES: u64 = 512;
const TABLE_LENGTH: usize = 4096;

/// A range of pages that is contiguous in virtual and in physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// The virtual address of the first page.
    pub address: u64,
    /// Its physical address, which may be outside guest memory.
    pub physical: u64,
    /// The length of the range, in bytes.
    pub length: u64,
}

impl MappedRange {
    /// The virtual address after the last page.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.length)
    }
}

impl<M: PhysicalMemory> AddressSpace<'_, M> {
    /// The mapped parts of the virtual addresses in `range`, sorted by address. Empty without long mode's page tables.
    /// Reads at most one table for each 2 MiB of the range, and five more. A table that can't be read maps nothing.
    pub fn mapped(&self, range: &Range<u64>) -> Vec<MappedRange> {
        let mut found = Vec::new();
        let last = range.end.saturating_sub(1);
        if let Paging::Long { root, levels } = self.paging
            && is_canonical(range.start, levels)
            && is_canonical(last, levels)
            && range.start >> 63 == last >> 63
        {
            // The bits above those that the tables translate are the same in the whole range.
            let start = range.start & !((1 << (12 + 9 * levels)) - 1);
            self.walk_table(root, levels, start, range, &mut found);
        }
        found
    }

    /// Adds the parts of `range` that the table at `table` maps. Its first entry is for address `start`.
    fn walk_table(
        &self,
        table: u64,
        level: u32,
        start: u64,
        range: &Range<u64>,
        found: &mut Vec<MappedRange>,
    ) {
        let mut entries = [0; TABLE_LENGTH];
        if self
            .memory
            .read_physical(GuestAddress(table), &mut entries)
            .is_none()
        {
            return;
        }
        let shift = 12 + 9 * (level - 1);
        for index in 0..ENTRIES {
            let address = start.wrapping_add(index << shift);
            // The last address, because the end of the address space doesn't fit into 64 bits.
            let last = address.wrapping_add((1 << shift) - 1);
            let entry = usize::try_from(index * 8).ok();
            let entry = entry.and_then(|place| u64_at(&entries, place)).unwrap_or(0);
            if last < range.start || address >= range.end || entry & PRESENT == 0 {
                continue;
            }
            let large = matches!(level, 2 | 3) && entry & LARGE != 0;
            if !large && level > 1 {
                self.walk_table(entry & FRAME, level - 1, address, range, found);
                continue;
            }
            let physical = entry & FRAME & !((1 << shift) - 1);
            let first = address.max(range.start);
            add(
                found,
                MappedRange {
                    address: first,
                    physical: physical + (first - address),
                    length: last.min(range.end - 1) - first + 1,
                },
            );
        }
    }
}

/// Adds `next`, or extends the last range if `next` continues it.
fn add(found: &mut Vec<MappedRange>, next: MappedRange) {
    match found.last_mut() {
        Some(last)
            if last.end() == next.address && last.physical + last.length == next.physical =>
        {
            last.length += next.length;
        }
        _ => found.push(next),
    }
}

const _: () = assert!(TABLE_LENGTH as u64 == PAGE && ENTRIES * 8 == PAGE);
