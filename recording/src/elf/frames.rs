//! Begins of functions from `.eh_frame` (LSB Core, 10.6), which files without symbols have, too.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EhFrameHdr, EhFrameOffset,
    EndianSlice, LittleEndian, Pointer, UnwindSection,
};

use super::file::{Elf, Header};
use super::symbols::MAX_FUNCTIONS;
use crate::file::BinaryFunction;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Adds the functions of `elf` that lie outside of all `functions`, and lengths where the symbols have none. `functions` are in the order of
/// their addresses, before and afterwards.
pub fn add_begins<H: Header>(elf: &Elf<'_, H>, functions: &mut Vec<BinaryFunction>) {
    let Some((section, bases)) = section(elf) else {
        return;
    };
    let mut found = begins(&section, &bases);
    for BinaryFunction {
        address, length, ..
    } in &found
    {
        let known = functions.binary_search_by_key(address, |function| function.address);
        let known = known.ok().and_then(|index| functions.get_mut(index));
        if let Some(function) = known.filter(|function| function.length == 0) {
            function.length = *length;
        }
    }
    found.retain(|function| !is_known(functions, function.address));
    found.truncate(MAX_FUNCTIONS.saturating_sub(functions.len()));
    functions.append(&mut found);
    functions.sort_by_key(|function| function.address);
    functions.dedup_by_key(|function| function.address);
}

/// Whether `address` is in one of `functions`. One of unknown length is taken to have one byte.
fn is_known(functions: &[BinaryFunction], address: u64) -> bool {
    let after = functions.partition_point(|function| function.address <= address);
    let before = after.checked_sub(1).and_then(|index| functions.get(index));
    before.is_some_and(|function| address - function.address < function.length.max(1))
}

/// The section, and the base addresses of pointers in it.
fn section<'a, H: Header>(elf: &Elf<'a, H>) -> Option<(EhFrame<Slice<'a>>, BaseAddresses)> {
    let (address, bytes) = eh_frame(elf)?;
    let bases = BaseAddresses::default().set_eh_frame(address);
    Some((EhFrame::new(bytes, LittleEndian), bases))
}

/// The address and contents of `.eh_frame`. Other data may follow if it was found by `.eh_frame_hdr`.
pub fn eh_frame<'a, H: Header>(elf: &Elf<'a, H>) -> Option<(u64, &'a [u8])> {
    elf.section(".eh_frame")
        .filter(|(_, bytes)| !bytes.is_empty())
        .or_else(|| by_header(elf))
}

/// The section where `.eh_frame_hdr` says that it is.
fn by_header<'a, H: Header>(elf: &Elf<'a, H>) -> Option<(u64, &'a [u8])> {
    let (address, header) = elf.frame_header()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(address);
    let header = EhFrameHdr::new(header, LittleEndian);
    let header = header.parse(&bases, 8).ok()?;
    match header.eh_frame_ptr() {
        Pointer::Direct(address) => Some((address, elf.bytes_at(address)?)),
        Pointer::Indirect(_) => None,
    }
}

fn begins(section: &EhFrame<Slice<'_>>, bases: &BaseAddresses) -> Vec<BinaryFunction> {
    let mut functions = Vec::new();
    // Each common entry is read once, for any number of functions that refer to it.
    let mut shared: HashMap<usize, CommonInformationEntry<Slice<'_>>> = HashMap::new();
    let mut entries = section.entries(bases);
    while functions.len() < MAX_FUNCTIONS
        && let Ok(Some(entry)) = entries.next()
    {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(|section, bases, EhFrameOffset(offset)| {
            if let Some(known) = shared.get(&offset) {
                return Ok(known.clone());
            }
            let common = section.cie_from_offset(bases, EhFrameOffset(offset))?;
            shared.insert(offset, common.clone());
            Ok(common)
        });
        if let Ok(description) = parsed
            && description.len() > 0
        {
            functions.push(BinaryFunction {
                address: description.initial_address(),
                length: description.len(),
                name: String::new(),
            });
        }
    }
    functions
}
