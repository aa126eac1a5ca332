//! Walks of page tables for one address.

use vm_memory::{Bytes, GuestAddress};

use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
use kvmprof_paging::{AddressSpace, CR0_PG, Registers};

fn memory() -> Memory {
    Memory::from_ranges(&[(GuestAddress(0), 1 << 20), (GuestAddress(1 << 32), 1 << 16)]).unwrap()
}

#[test]
fn walks_every_page_size_and_depth() {
    for levels in [4, 5] {
        let mut tables = Tables::new(memory(), 0x10000, levels);
        tables.map(0xffff_8000_0000_1000, 0x5000, 1);
        tables.map(0xffff_ffff_8020_0000, 0x20_0000, 2);
        tables.map(0x40_0000_0000, 1 << 32, 3);
        let registers = long_mode(0x10000 | 0xfff, levels == 5);
        let space = AddressSpace::new(&tables.memory, &registers);
        let physical = |address| space.translate(address).map(|address| address.0);
        for (address, expected) in [
            (0xffff_8000_0000_1abc, Some(0x5abc)),
            (0xffff_ffff_8021_2345, Some(0x21_2345)),
            (0x40_1234_5678, Some((1 << 32) + 0x1234_5678)),
            (0xffff_8000_0000_2000, None),
            (0x0080_0000_0000_0000, None),
            (0x0000_8000_0000_1000, None),
        ] {
            assert_eq!(physical(address), expected, "{levels} {address:#x}");
        }
    }
}

#[test]
fn reads_across_pages() {
    let mut tables = Tables::new(memory(), 0x10000, 4);
    tables.map(0x1000, 0x5000, 1);
    tables.map(0x2000, 0x3000, 1);
    for (place, bytes) in [(0x5ffc, &b"left"[..]), (0x3000, b"right")] {
        let written = tables.memory.write_slice(bytes, GuestAddress(place));
        written.unwrap();
    }
    let space = AddressSpace::new(&tables.memory, &long_mode(0x10000, false));
    let mut buffer = [0; 9];
    space.read(0x1ffc, &mut buffer).unwrap();
    assert_eq!(&buffer, b"leftright");
    assert_eq!(space.read(0x2ffc, &mut buffer), None);
}

#[test]
fn without_paging_addresses_are_physical() {
    let memory = memory();
    let mut registers = Registers::default();
    let same = Some(GuestAddress(0x1234));
    for (cr0, expected) in [(0, same), (CR0_PG, None)] {
        registers.cr0 = cr0;
        let space = AddressSpace::new(&memory, &registers);
        assert_eq!(space.translate(0x1234), expected, "{cr0:#x}");
    }
}

#[test]
fn circular_tables_end() {
    let memory = memory();
    for index in 0..512 {
        memory
            .write_obj(0x1000_u64 | 3, GuestAddress(0x1000 + index * 8))
            .unwrap();
    }
    let space = AddressSpace::new(&memory, &long_mode(0x1000, true));
    assert_eq!(space.translate(0x1234), Some(GuestAddress(0x1234)));
    // The first address follows the last one.
    assert_eq!(space.read(u64::MAX - 3, &mut [0; 64]), Some(()));
}
