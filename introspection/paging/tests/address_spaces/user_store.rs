//! Stores of user mode.

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use crate::hostile_tables::HostileTables;
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
use kvmprof_paging::{
    ACCESSED, AddressSpace, DIRTY, FRAME, LARGE, NotWritable, PRESENT, Registers, USER, WRITABLE,
};

const ROOT: u64 = 0x1_0000;
const ALL: u64 = PRESENT | WRITABLE | USER;

fn memory() -> Memory {
    Memory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap()
}

/// Page tables that let user mode write everything that they map.
fn user_tables(levels: u32) -> Tables {
    let mut tables = Tables::new(memory(), ROOT, levels);
    tables.map(0x40_0000, 0x5000, 1);
    tables.map(0x60_0000, 0x20_0000, 2);
    tables.map(0x8000_0000, 0, 3);
    for address in (ROOT..tables.end()).step_by(8) {
        let entry = entry_at(&tables, address);
        if entry != 0 {
            let place = GuestAddress(address);
            tables.memory.write_obj(entry | ALL, place).unwrap();
        }
    }
    tables
}

fn entry_at(tables: &Tables, address: u64) -> u64 {
    tables.memory.read_obj(GuestAddress(address)).unwrap()
}

/// The places of the entries for `address`, from the root on.
fn entries(tables: &Tables, address: u64, levels: u32) -> Vec<u64> {
    let mut table = ROOT;
    let mut places = Vec::new();
    for level in (1..=levels).rev() {
        let place = table + (address >> (12 + 9 * (level - 1)) & 0x1ff) * 8;
        let entry = entry_at(tables, place);
        places.push(place);
        if entry & LARGE != 0 {
            break;
        }
        table = entry & FRAME;
    }
    places
}

#[test]
fn marks_every_level_as_the_processor_does() {
    for levels in [4, 5] {
        for (address, physical) in [
            (0x40_0123, 0x5123),
            (0x60_4567, 0x20_4567),
            (0x8012_3456, 0x12_3456),
        ] {
            let tables = user_tables(levels);
            let registers = long_mode(ROOT, levels == 5);
            let space = AddressSpace::new(&tables.memory, &registers);
            let places = entries(&tables, address, levels);
            let before: Vec<u64> = places.iter().map(|at| entry_at(&tables, *at)).collect();
            assert_eq!(space.user_store(address), Ok(GuestAddress(physical)));
            for (depth, (place, before)) in places.iter().zip(&before).enumerate() {
                let last = depth + 1 == places.len();
                let bits = if last { ACCESSED | DIRTY } else { ACCESSED };
                assert_eq!(entry_at(&tables, *place), before | bits);
            }
            assert_eq!(space.user_store(address), Ok(GuestAddress(physical)));
        }
    }
}

#[test]
fn permissions_of_every_level_apply() {
    for address in [0x40_0123, 0x60_4567, 0x8012_3456] {
        for (bit, reason) in [
            (PRESENT, NotWritable::Absent),
            (WRITABLE, NotWritable::ReadOnly),
            (USER, NotWritable::Forbidden),
        ] {
            let count = entries(&user_tables(4), address, 4).len();
            for depth in 0..count {
                let tables = user_tables(4);
                let place = entries(&tables, address, 4)[depth];
                let entry = entry_at(&tables, place) & !bit;
                tables.memory.write_obj(entry, GuestAddress(place)).unwrap();
                let before = contents(&tables.memory);
                let space = AddressSpace::new(&tables.memory, &long_mode(ROOT, false));
                assert_eq!(space.user_store(address), Err(reason), "{address:#x}");
                assert!(contents(&tables.memory) == before, "nothing has changed");
            }
        }
    }
}

#[test]
fn only_addresses_of_user_mode_are_written() {
    let tables = user_tables(4);
    let registers = long_mode(ROOT, false);
    let space = AddressSpace::new(&tables.memory, &registers);
    for address in [1 << 47, 1 << 62, 0xffff_8000_0040_0000, u64::MAX] {
        assert_eq!(space.user_store(address), Err(NotWritable::Forbidden));
    }
    assert_eq!(space.user_store(0x50_0000), Err(NotWritable::Absent));
    let unpaged = Registers::default();
    let space = AddressSpace::new(&tables.memory, &unpaged);
    assert_eq!(space.user_store(0x5000), Err(NotWritable::Forbidden));
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; 4 << 20];
    memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    bytes
}

proptest! {
    #[test]
    fn hostile_tables_get_only_accessed_and_dirty_bits(tables in HostileTables::any()) {
        let memory = memory();
        tables.write(&memory, |entry| {
            // Most entries allow everything, and half of them point to other tables.
            let entry = if entry & 8 == 0 { entry & 0x3f_f0ff } else { entry };
            if entry & 16 == 0 { entry | ALL } else { entry }
        });
        let before = contents(&memory);
        for registers in tables.registers(0xfff) {
            let space = AddressSpace::new(&memory, &registers);
            // The result is checked when it is written.
            let _ = space.user_store(tables.address & i64::MAX.cast_unsigned());
        }
        let after = contents(&memory);
        let words = before.as_chunks::<8>().0.iter().zip(after.as_chunks::<8>().0);
        for (before, after) in words {
            let changed = u64::from_le_bytes(*before) ^ u64::from_le_bytes(*after);
            prop_assert_eq!(changed & !(ACCESSED | DIRTY), 0);
        }
    }
}
