//! A kernel without BTF, ORC and names of variables, made from one with them.

use kvmprof_introspection::parts::{KernelImage, Vmlinux, names_of_variables};

/// The sections with BTF and ORC.
const SECTIONS: [&[u8]; 3] = [b".BTF", b".orc_unwind", b".orc_unwind_ip"];

/// The unpacked kernel `elf` without BTF, ORC, and names of variables, as one without CONFIG_DEBUG_INFO_BTF,
/// CONFIG_UNWINDER_ORC and CONFIG_KALLSYMS_ALL. Variables have names of functions that don't exist. `None` if it has no
/// symbol table.
pub fn undescribed(elf: &[u8]) -> Option<Vec<u8>> {
    let file = Vmlinux::parse(elf).ok()?;
    // The offset of a part of the file.
    let offset = |part: &[u8]| (part.as_ptr() as usize).checked_sub(elf.as_ptr() as usize);
    let mut changed = elf.to_vec();
    for name in SECTIONS {
        let (_, section) = file.section(name)?;
        let start = offset(section)?;
        changed.get_mut(start..start + section.len())?.fill(0);
    }
    let image = KernelImage::from_file(file);
    let mut segments = image.segments().iter();
    let (start, (places, [function, letter])) = segments
        .find_map(|segment| Some((offset(segment.data)?, names_of_variables(segment.data)?)))?;
    for place in places {
        let name = changed.get_mut(start + place.start..start + place.end)?;
        name.fill(letter);
        *name.first_mut()? = function;
    }
    Some(changed)
}

/// `elf`, a kernel's file, with a function that only returns at link-time address `address`. `None` if it has no code there.
pub fn with_return_at(elf: &[u8], address: u64) -> Option<Vec<u8>> {
    /// RET.
    const RETURN: u8 = 0xc3;
    patched(elf, address, &[RETURN])
}

/// `elf`, a kernel's file, with these bytes at link-time address `address`. `None` if nothing of it is there.
pub fn patched(elf: &[u8], address: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    let image = KernelImage::from_file(Vmlinux::parse(elf).ok()?);
    let code = image.bytes_from(address)?;
    let place = (code.as_ptr() as usize).checked_sub(elf.as_ptr() as usize)?;
    let mut changed = elf.to_vec();
    (changed.get_mut(place..place + bytes.len())?).copy_from_slice(bytes);
    Some(changed)
}
