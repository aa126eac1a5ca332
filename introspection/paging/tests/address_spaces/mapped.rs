//! Lists of mapped pages.

use std::ops::Range;

use proptest::prelude::*;
use vm_memory::GuestAddress;

use crate::hostile_tables::HostileTables;
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
use kvmprof_paging::{AddressSpace, MappedRange, Registers};

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
    let space = AddressSpace::new(&memory, &Registers::default());
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
