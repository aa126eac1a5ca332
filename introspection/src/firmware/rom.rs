//! The BIOS and option ROMs below 1 MiB.

use super::{NamedCode, bytes};
use crate::PhysicalMemory;
use crate::bytes::u16_at;

/// Where option ROMs are, and where a BIOS is (PCI firmware specification 3.3, section 5.1).
const OPTION_ROMS: std::ops::Range<u64> = 0xc_0000..0xe_0000;
const BIOS: std::ops::Range<u64> = 0xe_0000..0x10_0000;
/// Option ROMs begin at a multiple of 2 KiB, with this signature, and the number of their blocks of 512 bytes.
const ROM_ALIGNMENT: u64 = 2048;
const ROM_SIGNATURE: [u8; 2] = [0x55, 0xaa];
const ROM_BLOCK: u64 = 512;
/// The offset of the pointer to the PCI data structure, whose vendor and device follow its signature.
const PCI_POINTER: usize = 0x18;
/// What SeaBIOS writes into its ROM (SeaBIOS: src/post.c).
const SEABIOS: &[u8] = b"SeaBIOS (version ";
/// The BIOS is searched in pieces, which overlap by the length of what is searched.
const PIECE: usize = 4096;

/// The BIOS or option ROM around `address`.
pub fn find<M: PhysicalMemory>(memory: &M, address: u64) -> Option<NamedCode> {
    if OPTION_ROMS.contains(&address) {
        return option_rom(memory, address);
    }
    (BIOS.contains(&address) && is_seabios(memory)).then(|| NamedCode {
        begin: BIOS.start,
        end: BIOS.end,
        name: "SeaBIOS".to_owned(),
    })
}

fn option_rom<M: PhysicalMemory>(memory: &M, address: u64) -> Option<NamedCode> {
    let mut begin = address & !(ROM_ALIGNMENT - 1);
    while begin >= OPTION_ROMS.start {
        let header: [u8; 26] = bytes(memory, begin)?;
        if header.starts_with(&ROM_SIGNATURE) {
            let length = u64::from(header[2]) * ROM_BLOCK;
            let end = begin + length;
            let is_inside = address < end && end <= OPTION_ROMS.end;
            let name =
                pci_device(memory, begin, &header).unwrap_or_else(|| "option_rom".to_owned());
            return is_inside.then_some(NamedCode { begin, end, name });
        }
        begin -= ROM_ALIGNMENT;
    }
    None
}

/// A name by vendor and device.
fn pci_device<M: PhysicalMemory>(memory: &M, begin: u64, header: &[u8]) -> Option<String> {
    let pointer = u16_at(header, PCI_POINTER)?;
    let data: [u8; 8] = bytes(memory, begin + u64::from(pointer))?;
    data.starts_with(b"PCIR").then_some(())?;
    let (vendor, device) = (u16_at(&data, 4)?, u16_at(&data, 6)?);
    Some(format!("option_rom_{vendor:04x}_{device:04x}"))
}

fn is_seabios<M: PhysicalMemory>(memory: &M) -> bool {
    let mut begin = BIOS.start;
    while begin < BIOS.end {
        let length = usize::try_from(BIOS.end - begin)
            .unwrap_or(PIECE)
            .min(PIECE);
        let mut piece = [0; PIECE];
        let Some(piece) = piece.get_mut(..length) else {
            return false;
        };
        let read = memory.read_physical(vm_memory::GuestAddress(begin), piece);
        if read.is_some() && memchr::memmem::find(piece, SEABIOS).is_some() {
            return true;
        }
        begin += (PIECE - SEABIOS.len()) as u64;
    }
    false
}
