//! Lists the mapped pages of a range of virtual addresses. Reads whole page tables.

use std::ops::Range;

use vm_memory::GuestAddress;

use super::PhysicalMemory;
use super::paging::{AddressSpace, FRAME, LARGE, PAGE, PRESENT, Paging, is_canonical};
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::page_tables::{HostileTables, Memory, Tables, long_mode};

    const START: u64 = 0xffff_ffff_8000_0000;
    const ALL: Range<u64> = START..START + (1 << 30);

    fn memory() -> Memory {
        Memory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap()
    }

    fn range(address: u64, physical: u64, length: u64) -> MappedRange {
        MappedRange {
            address,
            physical,
            length,
        }
    }

    #[test]
    fn lists_pages_of_every_size_with_their_gaps() {
        for levels in [4, 5] {
            let mut tables = Tables::new(memory(), 0x10000, levels);
            tables.map(START + 0x100_0000, 0x200_0000, 2);
            tables.map(START + 0x120_0000, 0x220_0000, 2);
            tables.map(START + 0x140_0000, 0x240_0000, 1);
            // Contiguous in virtual memory only.
            tables.map(START + 0x140_1000, 0x5000, 1);
            tables.map(START + 0x150_0000, 0x6000, 1);
            // Outside the range, on both sides.
            tables.map(START - 0x1000, 0x7000, 1);
            tables.map(START + (1 << 30), 0x8000, 1);
            let registers = long_mode(0x10000, levels == 5);
            let space = AddressSpace::new(&tables.memory, &registers);
            assert_eq!(
                space.mapped(&ALL),
                [
                    range(START + 0x100_0000, 0x200_0000, 0x40_1000),
                    range(START + 0x140_1000, 0x5000, 0x1000),
                    range(START + 0x150_0000, 0x6000, 0x1000)
                ]
            );
            let part = START + 0x110_0000..START + 0x120_1000;
            assert_eq!(
                space.mapped(&part),
                [range(START + 0x110_0000, 0x210_0000, 0x10_1000)]
            );
        }
    }

    #[test]
    fn a_huge_page_is_cut_to_the_range() {
        let mut tables = Tables::new(memory(), 0x10000, 4);
        tables.map(START, 1 << 40, 3);
        let registers = long_mode(0x10000, false);
        let space = AddressSpace::new(&tables.memory, &registers);
        assert_eq!(space.mapped(&ALL), [range(START, 1 << 40, 1 << 30)]);
        let part = START + 0x1000..START + 0x3000;
        assert_eq!(
            space.mapped(&part),
            [range(START + 0x1000, (1 << 40) + 0x1000, 0x2000)]
        );
        assert_eq!(space.mapped(&(0x8000_0000_0000..0x8000_0000_1000)), []);
    }

    #[test]
    fn without_page_tables_nothing_is_mapped() {
        let memory = memory();
        let space = AddressSpace::new(&memory, &crate::Registers::default());
        assert_eq!(space.mapped(&ALL), []);
    }

    proptest! {
        #[test]
        fn agrees_with_single_address_walks(tables in HostileTables::any()) {
            let memory = memory();
            tables.write(&memory, |entry| if entry & 2 == 0 { entry & 0xf_f0ff } else { entry });
            for registers in tables.registers(0xf_ffff) {
                let space = AddressSpace::new(&memory, &registers);
                for address in [tables.address, tables.address & 0x7fff_ffff_ffff, START] {
                    let address = address & !0xfff;
                    let range = address..address.saturating_add(0x20_0000);
                    let found = space.mapped(&range);
                    prop_assert!(found.is_sorted_by_key(|mapped| mapped.address));
                    for page in range.clone().step_by(4096).take_while(|page| *page < range.end) {
                        let listed = found.iter().find(|mapped| (mapped.address..mapped.end()).contains(&page));
                        let listed = listed.map(|mapped| mapped.physical + (page - mapped.address));
                        prop_assert_eq!(listed, space.translate(page).map(|address| address.0));
                    }
                }
            }
        }
    }
}
