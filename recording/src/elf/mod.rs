//! The functions of programs and libraries (ELF files).
//!
//! Files come from guests: all data is checked, and its size is bounded. If only parts of a file exist (holes of zeros, no
//! section headers), the result has what can be found in these parts.

mod error;
pub mod extents;
mod file;
mod frames;
pub mod go;
mod identity;
mod plt;
mod symbols;
mod table;

use std::ops::Range;

use object::Endianness;
use object::elf::{FileHeader32, FileHeader64, STT_FUNC, STT_OBJECT, SymbolType};

use crate::file::{BinaryFunction, Segment};
pub use error::BinaryError;
use file::Elf;
pub use file::hex;
pub use identity::{Identity, Mismatch};
use symbols::CollectedFunctions;
pub use symbols::{MAX_NAME, MAX_NAMES_BYTES, bounded_name};
pub use table::SymbolSections;

/// The data of a file that recordings have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedBinary {
    /// Its build id in hexadecimal; empty if it has none.
    pub build_id: String,
    /// Its executable segments.
    pub segments: Vec<Segment>,
    /// The CRC-32 of its code, as [`Identity::code_crc32`].
    pub code_crc32: Option<u32>,
    /// Its functions in the order of their addresses, one at each, as mangled as the file has them. Those of
    /// `.symtab`, or else `.dynsym`, `.gnu_debugdata` and the table of Go's runtime; stubs of its PLT, `name@plt`; where none of these is,
    /// functions without a name out of `.eh_frame`. Each has a length: what is between them belongs to no function that is known.
    pub functions: Vec<BinaryFunction>,
    /// The number of functions that have no name here because the file has more or longer names than are read.
    pub unnamed: usize,
}

/// Reads the file whose contents are `bytes`, which should be aligned to 8.
///
/// # Errors
/// It is no ELF file for little-endian x86, or none with executable segments.
pub fn parse(bytes: &[u8]) -> Result<ParsedBinary, BinaryError> {
    match bytes.get(4) {
        _ if !bytes.starts_with(&object::elf::ELFMAG) => Err(BinaryError::NotElf),
        Some(1) => Ok(of_elf(&Elf::<FileHeader32<Endianness>>::parse(bytes)?)),
        Some(2) => Ok(of_elf(&Elf::<FileHeader64<Endianness>>::parse(bytes)?)),
        _ => Err(BinaryError::NotElf),
    }
}

/// The virtual address and contents of the `.eh_frame` in the 64-bit file whose contents are `bytes`, which should be aligned
/// to 8. A file without section headers is searched by its `PT_GNU_EH_FRAME`; then other data may follow. `None` if there is none.
pub fn eh_frame(bytes: &[u8]) -> Option<(u64, &[u8])> {
    frames::eh_frame(&Elf::<FileHeader64<Endianness>>::parse(bytes).ok()?)
}

/// A variable of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable<'a> {
    /// Its address, by the addresses of the file.
    pub address: u64,
    /// The contents with which the file begins, from there to the end of its segment; empty for a variable that begins with zeros.
    pub contents: &'a [u8],
}

/// The variable called `name` in the 64-bit file whose contents are `bytes`, which should be aligned to 8, by `.symtab` or `.dynsym`.
/// `None` if there is none.
pub fn variable<'a>(bytes: &'a [u8], name: &str) -> Option<Variable<'a>> {
    let elf = Elf::<FileHeader64<Endianness>>::parse(bytes).ok()?;
    let (address, _) = symbol(&elf, (STT_OBJECT, name))?;
    let contents = elf.bytes_at(address).unwrap_or_default();
    Some(Variable { address, contents })
}

/// The addresses of the function called `name` in such a file, as its symbol has them: parts that the compiler has put elsewhere
/// aren't among them.
pub fn function(bytes: &[u8], name: &str) -> Option<Range<u64>> {
    let elf = Elf::<FileHeader64<Endianness>>::parse(bytes).ok()?;
    let (address, length) = symbol(&elf, (STT_FUNC, name))?;
    Some(address..address.checked_add(length)?)
}

/// The address and the length of the symbol of this kind and name.
fn symbol(
    elf: &Elf<'_, FileHeader64<Endianness>>,
    wanted: (SymbolType, &str),
) -> Option<(u64, u64)> {
    let tables = [elf.dynamic_symbols(), elf.symbols(object::elf::SHT_SYMTAB)];
    tables.into_iter().flatten().find_map(|table| {
        let mut symbols = table.symbols.iter();
        symbols.find_map(|symbol| symbols::named(symbol, elf.endian, table.names, wanted))
    })
}

fn of_elf<Header: file::Header>(elf: &Elf<'_, Header>) -> ParsedBinary {
    let segments = elf.executable_segments();
    let mut collected = CollectedFunctions::default();
    if !collected.add_table(elf.symbols(object::elf::SHT_SYMTAB), elf.endian, &segments) {
        collected.add_table(elf.dynamic_symbols(), elf.endian, &segments);
        collected.add_debug_data(elf.section(".gnu_debugdata"), &segments);
        collected.add_go(go::GoTable::of_elf(elf), &segments);
    }
    collected.add_all(plt::stubs(elf));
    let mut functions = collected.functions();
    frames::add_begins(elf, &mut functions);
    collected.bound(&mut functions, &elf.code());
    ParsedBinary {
        build_id: elf.build_id(),
        code_crc32: identity::code_crc32(elf.bytes, &segments),
        segments,
        functions,
        unnamed: collected.unnamed(),
    }
}

#[cfg(test)]
mod tests;
