//! Where a guest that isn't Linux keeps what introspection wants: a base, then a chain of offsets.

use vm_memory::GuestMemoryBackend;

use super::Registers;
use super::paging::AddressSpace;

/// Most offsets of a chain.
pub const MAX_DEPTH: usize = 4;

/// What the first offset of a chain counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Address 0: the first offset is a virtual address.
    Absolute,
    /// The GS base that the vCPU has at the moment.
    Gs,
}

/// Where a value is: the address is the base plus the first offset; each further offset counts from the
/// 64-bit pointer found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    base: Base,
    width: u8,
    depth: u8,
    offsets: [i64; MAX_DEPTH],
}

impl Chain {
    /// A chain of one to [`MAX_DEPTH`] `offsets` to a value of `width` bytes: 1, 2, 4 or 8 for a number,
    /// 16 for a name. `None` for anything else.
    pub fn new(base: Base, offsets: &[i64], width: u32) -> Option<Self> {
        let width = u8::try_from(width).ok()?;
        let mut all = [0; MAX_DEPTH];
        all.get_mut(..offsets.len())?.copy_from_slice(offsets);
        let depth = u8::try_from(offsets.len()).ok()?;
        (depth > 0 && matches!(width, 1 | 2 | 4 | 8 | 16)).then_some(Self {
            base,
            width,
            depth,
            offsets: all,
        })
    }

    /// The value's width, in bytes.
    pub fn width(&self) -> u8 {
        self.width
    }

    /// The number at the chain's end, sign-extended. `None` when a link isn't mapped.
    pub fn number<M: GuestMemoryBackend>(
        &self,
        space: &AddressSpace<'_, M>,
        registers: &Registers,
    ) -> Option<i64> {
        let mut bytes = [0; 8];
        let width = usize::from(self.width);
        space.read(self.address(space, registers)?, bytes.get_mut(..width)?)?;
        let unused = 64 - 8 * u32::from(self.width);
        Some(i64::from_le_bytes(bytes) << unused >> unused)
    }

    /// The 16 bytes at the chain's end. `None` when a link isn't mapped, or the chain leads to a number.
    pub fn name<M: GuestMemoryBackend>(
        &self,
        space: &AddressSpace<'_, M>,
        registers: &Registers,
    ) -> Option<[u8; 16]> {
        let mut bytes = [0; 16];
        if usize::from(self.width) != bytes.len() {
            return None;
        }
        space.read(self.address(space, registers)?, &mut bytes)?;
        Some(bytes)
    }

    fn address<M: GuestMemoryBackend>(
        &self,
        space: &AddressSpace<'_, M>,
        registers: &Registers,
    ) -> Option<u64> {
        let start = match self.base {
            Base::Absolute => 0,
            Base::Gs => registers.gs_base,
        };
        let (first, rest) = self.offsets.get(..usize::from(self.depth))?.split_first()?;
        let mut address = start.wrapping_add_signed(*first);
        for offset in rest {
            let mut pointer = [0; 8];
            space.read(address, &mut pointer)?;
            address = u64::from_le_bytes(pointer).wrapping_add_signed(*offset);
        }
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::super::paging::tests::Memory;
    use super::*;

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
            Chain::new(base, offsets, width)
                .unwrap()
                .number(&space, &registers)
        };
        assert_eq!(number(Base::Gs, &[0x10, -8], 4), Some(-2));
        assert_eq!(number(Base::Absolute, &[0x1010, -8], 8), Some(0xffff_fffe));
        assert_eq!(number(Base::Absolute, &[0x1ff8], 1), Some(-2));
        assert_eq!(number(Base::Absolute, &[0x1010], 2), Some(0x2000));
        assert_eq!(number(Base::Absolute, &[0x3ffd], 4), None);
        assert_eq!(number(Base::Absolute, &[-1], 8), None);
        let name = Chain::new(Base::Gs, &[0x10, 8], 16).unwrap();
        assert_eq!(
            name.name(&space, &registers).as_ref(),
            Some(b"a name of 16 byt")
        );
        assert_eq!(name.number(&space, &registers), None);
    }

    #[test]
    fn refuses_odd_shapes() {
        assert_eq!(Chain::new(Base::Gs, &[], 4), None);
        assert_eq!(Chain::new(Base::Gs, &[0; 5], 4), None);
        assert_eq!(Chain::new(Base::Gs, &[0], 3), None);
        assert_eq!(Chain::new(Base::Gs, &[0], 256), None);
    }
}
