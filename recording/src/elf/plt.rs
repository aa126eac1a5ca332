//! Stubs of the procedure linkage table (System V ABI, AMD64 supplement, 5.2), and the functions that they jump to.

use std::collections::HashMap;

use object::elf::{DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, EM_X86_64};
use object::read::elf::{Rela, Sym};

use super::file::{Elf, Header};
use crate::file::BinaryFunction;

/// The sections with stubs, and the bytes of one.
const SECTIONS: [(&str, usize); 3] = [(".plt", 16), (".plt.sec", 16), (".plt.got", 8)];

/// The stubs of `elf`, as `name@plt`.
pub fn stubs<H: Header>(elf: &Elf<'_, H>) -> Vec<BinaryFunction> {
    if elf.header.e_machine(elf.endian) != EM_X86_64 {
        return Vec::new();
    }
    let slots = slots(elf);
    let mut stubs = Vec::new();
    for (section, length) in SECTIONS {
        let Some((begin, code)) = elf.section(section) else {
            continue;
        };
        // With endbr64 .plt.got has longer stubs.
        let length = if code.starts_with(ENDBR64) {
            16
        } else {
            length
        };
        for (address, stub) in (begin..).step_by(length).zip(code.chunks_exact(length)) {
            let slot = jump_slot(address, stub);
            if let Some(name) = slot.and_then(|slot| slots.get(&slot)) {
                stubs.push(BinaryFunction {
                    address,
                    length: length as u64,
                    name: format!("{}@plt", String::from_utf8_lossy(name)),
                });
            }
        }
    }
    stubs
}

const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];

/// The address that the stub at `address` takes its target from: `jmp *slot(%rip)`.
fn jump_slot(address: u64, stub: &[u8]) -> Option<u64> {
    let jump = stub
        .windows(6)
        .position(|code| code.starts_with(&[0xff, 0x25]))?;
    let distance: [u8; 4] = stub.get(jump + 2..jump + 6)?.try_into().ok()?;
    let next = address.wrapping_add(jump as u64 + 6);
    Some(next.wrapping_add_signed(i32::from_le_bytes(distance).into()))
}

/// The addresses that the dynamic linker fills in, and the names of the functions whose addresses it writes there.
fn slots<'a, H: Header>(elf: &Elf<'a, H>) -> HashMap<u64, &'a [u8]> {
    let mut slots = HashMap::new();
    let Some(table) = elf.dynamic_symbols() else {
        return slots;
    };
    for (begin, length) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        for relocation in elf.relocations(begin, length) {
            let symbol = relocation.symbol(elf.endian, false);
            let name = symbol
                .and_then(|index| table.symbols.get(index.0))
                .and_then(|symbol| symbol.name(elf.endian, table.names).ok())
                .filter(|name| !name.is_empty());
            if let Some(name) = name {
                slots.insert(relocation.r_offset(elf.endian).into(), name);
            }
        }
    }
    slots
}
