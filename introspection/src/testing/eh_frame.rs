//! Builds unwind information as compilers do (System V ABI for x86-64, section 6.4).

use crate::UnwindTable;

/// A section to be loaded at `section`, with one entry for each function: its address and its call frame instructions.
/// Each function has 256 bytes; the common instructions describe functions without frames.
pub fn eh_frame(section: u64, functions: &[(u64, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |contents: &[u8]| {
        let length = contents.len().next_multiple_of(4);
        bytes.extend(u32::try_from(length).unwrap().to_le_bytes());
        bytes.extend(contents);
        // DW_CFA_nop.
        bytes.resize(bytes.len() + length - contents.len(), 0);
        bytes.len()
    };
    // Version 1, "zR", factors 1 and -8, return address 16, relative pointers of 4 bytes. The caller's stack pointer is
    // 8 above, and the return address is below that.
    let mut end = add(&[
        0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1,
    ]);
    for (address, instructions) in functions {
        let place = end + 4;
        let mut entry = u32::try_from(place).unwrap().to_le_bytes().to_vec();
        let distance = address.wrapping_sub(section + place as u64 + 4);
        entry.extend(&distance.to_le_bytes()[..4]);
        entry.extend(0x100_u32.to_le_bytes());
        entry.push(0);
        entry.extend(*instructions);
        end = add(&entry);
    }
    bytes.extend([0; 4]);
    bytes
}

/// The unwind information of a section as from [`eh_frame`], in a file that begins at `base` and has one executable
/// segment of `length` bytes there. `None` if it isn't usable.
pub fn unwind_table(
    section: &[u8],
    address: u64,
    (base, length): (u64, u64),
) -> Option<UnwindTable> {
    UnwindTable::new(section, address, 0, vec![(0, base, length)])
}
