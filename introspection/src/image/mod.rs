//! A kernel's image: the unpacked file that the VMM loads, or a copy from a running guest's memory.

pub(crate) mod btf;
mod bzimage;
mod decompress;
pub(crate) mod dwarf;
pub(crate) mod elf;
pub(crate) mod kallsyms;
mod kernel_image;
mod symbols;
pub(crate) mod types;

use std::borrow::Cow;

use crate::IntrospectionError;

pub use decompress::decompress as unpack_archive;
pub use elf::{Segment, Vmlinux, notes};
pub use kernel_image::KernelImage;
pub use symbols::Symbols;

/// An ELF file's first bytes (`ELFMAG`, elf(5)).
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Maximum size of an unpacked kernel, in bytes. Distribution kernels have some 60 MB, and less than 400 MB with debug
/// information.
pub const MAX_UNPACKED: u64 = 512 << 20;

/// Unpacks a kernel file, a bzImage or an ELF vmlinux, to its ELF file. An ELF file is returned unchanged.
///
/// # Errors
/// The file is neither of these, is damaged, or unpacks to more than [`MAX_UNPACKED`] bytes.
pub fn unpack(file: &[u8]) -> Result<Cow<'_, [u8]>, IntrospectionError> {
    if file.starts_with(ELF_MAGIC) {
        return Ok(Cow::Borrowed(file));
    }
    let payload = bzimage::payload(file)?;
    if payload.starts_with(ELF_MAGIC) {
        return Ok(Cow::Borrowed(payload));
    }
    let unpacked = decompress::decompress(payload, MAX_UNPACKED)?;
    if !unpacked.starts_with(ELF_MAGIC) {
        return Err(IntrospectionError::Elf(
            "the payload unpacks to something else".to_owned(),
        ));
    }
    Ok(Cow::Owned(unpacked))
}
