//! Reads a value at a location from a `kvmprof` note or `--pid-at`.

use crate::{PhysicalMemory, Registers};
use kvmprof_abi::note::{Base, COMM_WIDTH, Location};

use kvmprof_paging::AddressSpace;

/// The number at `location`, sign-extended. `None` if an address of its chain isn't mapped, or the location is that of
/// a name.
pub fn number<M: PhysicalMemory>(
    location: &Location,
    space: &AddressSpace<'_, M>,
    registers: &Registers,
) -> Option<i64> {
    let mut bytes = [0; 8];
    let buffer = bytes.get_mut(..usize::from(location.width))?;
    space.read(address(location, space, registers)?, buffer)?;
    let unused = 64 - 8 * u32::from(location.width);
    Some(i64::from_le_bytes(bytes) << unused >> unused)
}

/// The name at `location`. `None` if an address of its chain isn't mapped, or the location is that of a number.
pub fn name<M: PhysicalMemory>(
    location: &Location,
    space: &AddressSpace<'_, M>,
    registers: &Registers,
) -> Option<[u8; COMM_WIDTH as usize]> {
    if location.width != COMM_WIDTH {
        return None;
    }
    space.read_array(address(location, space, registers)?)
}

/// The address of the value at `location`. `None` if an address of its chain isn't mapped.
pub fn address<M: PhysicalMemory>(
    location: &Location,
    space: &AddressSpace<'_, M>,
    registers: &Registers,
) -> Option<u64> {
    let start = match location.base {
        Base::Absolute => 0,
        Base::Gs => registers.gs_base,
    };
    let (first, rest) = location.offsets().split_first()?;
    let mut address = start.wrapping_add_signed(*first);
    for offset in rest {
        let pointer = space.read_array(address).map(u64::from_le_bytes)?;
        address = pointer.wrapping_add_signed(*offset);
    }
    Some(address)
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use kvmprof_introspection_fixtures::page_tables::Memory;

    fn memory() -> Memory {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
        memory.write_obj(0x2000_u64, GuestAddress(0x1010)).unwrap();
        memory.write_obj(-2_i32, GuestAddress(0x1ff8)).unwrap();
        memory
            .write_slice(b"a name of 16 byt", GuestAddress(0x2008))
            .unwrap();
        memory
    }

    #[test]
    fn follows_pointers() {
        let memory = memory();
        let registers = Registers {
            gs_base: 0x1000,
            ..Registers::default()
        };
        let space = AddressSpace::new(&memory, &registers);
        let number = |base, offsets: &[i64], width| {
            number(
                &Location::new(base, width, offsets).unwrap(),
                &space,
                &registers,
            )
        };
        for (base, offsets, width, value) in [
            (Base::Gs, &[0x10, -8][..], 4, Some(-2)),
            (Base::Absolute, &[0x1010, -8], 8, Some(0xffff_fffe)),
            (Base::Absolute, &[0x1ff8], 1, Some(-2)),
            (Base::Absolute, &[0x1010], 2, Some(0x2000)),
            (Base::Absolute, &[0x3ffd], 4, None),
            (Base::Absolute, &[-1], 8, None),
        ] {
            assert_eq!(number(base, offsets, width), value, "{offsets:x?}");
        }
        let comm = Location::new(Base::Gs, 16, &[0x10, 8]).unwrap();
        let found = name(&comm, &space, &registers);
        assert_eq!(found, Some(*b"a name of 16 byt"));
        assert_eq!(super::number(&comm, &space, &registers), None);
    }
}
