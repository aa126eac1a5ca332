//! The symbol table of a file that isn't in memory as a whole: debug files can have gigabytes.

use object::elf::{FileHeader64, Sym64};
use object::read::StringTable;
use object::read::elf::Sym;
use object::{Endianness, pod};

use super::file::SymbolTable;
use super::symbols::{CollectedFunctions, MAX_NAMES_BYTES};
use crate::file::{BinaryFunction, Segment};

/// Maximum number of functions: twice as many as in a recording.
const MAX_FUNCTIONS: usize = 1 << 21;

/// The parts of a 64-bit file for little-endian x86 that tell its functions.
#[derive(Clone, Copy, Debug)]
pub struct SymbolSections<'a> {
    /// The contents of `.symtab`, aligned to 8.
    pub symbols: &'a [u8],
    /// The contents of the section with its names.
    pub names: &'a [u8],
    /// The executable segments, with their lengths in memory: a debug file has none of their bytes.
    pub segments: &'a [Segment],
    /// The begins and ends of the sections with code.
    pub code: &'a [(u64, u64)],
}

impl<'a> SymbolSections<'a> {
    /// The functions, as in [`super::ParsedBinary::functions`], and the number of those that aren't among them or have no name because there are too many.
    pub fn functions(&self) -> (Vec<BinaryFunction>, usize) {
        let mut collected = CollectedFunctions::with_room(MAX_FUNCTIONS, MAX_NAMES_BYTES);
        collected.add_table(self.table(), Endianness::Little, self.segments);
        let mut functions = collected.functions();
        collected.bound(&mut functions, self.code);
        (functions, collected.unnamed())
    }

    /// The address of the symbol called `name`, whether it is a function or not.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let table = self.table()?;
        let endian = Endianness::Little;
        let mut symbols = table.symbols.iter();
        let found =
            symbols.find(|symbol| symbol.name(endian, table.names) == Ok(name.as_bytes()))?;
        Some(found.st_value(endian))
    }

    fn table(&self) -> Option<SymbolTable<'a, FileHeader64<Endianness>>> {
        let count = self.symbols.len() / size_of::<Sym64<Endianness>>();
        let (symbols, _) = pod::slice_from_bytes(self.symbols, count).ok()?;
        Some(SymbolTable {
            symbols,
            names: StringTable::new(self.names, 0, self.names.len() as u64),
        })
    }
}
