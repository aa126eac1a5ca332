//! Reads functions from symbol tables.

use std::io::Read;

use object::Endianness;
use object::elf::{
    FileHeader64, SHN_UNDEF, SHT_SYMTAB, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE,
};
use object::read::elf::Sym;

use super::file::{Elf, Header, SymbolTable};
use crate::file::{BinaryFunction, Segment};

/// Maximum number of functions of a file.
pub const MAX_FUNCTIONS: usize = 1 << 20;
/// Maximum length of a name in bytes. Longer names are cut off.
const MAX_NAME: usize = 4096;
/// Maximum size of the names of a file's symbols in memory, in bytes. In a hostile file all symbols share one name of
/// half of the file.
pub const MAX_NAMES_BYTES: usize = 256 << 20;
/// Maximum size of all names of a file in bytes, so that its block isn't too long.
const MAX_NAMES: usize = 32 << 20;
/// Maximum size of `.gnu_debugdata` when unpacked, in bytes.
const MAX_DEBUG_DATA: u64 = 64 << 20;
/// Maximum memory for unpacking it, in KiB: xz's presets have dictionaries of up to 64 MiB.
const XZ_MEMORY_KIB: u32 = 96 << 10;

/// A symbol, and how well its name describes its address.
#[derive(Debug)]
struct Candidate {
    function: BinaryFunction,
    /// The higher, the better: whether it has a length, how visible it is.
    rank: (bool, u8),
}

/// A symbol's name, cut off at the maximum length.
pub fn bounded_name(name: &str) -> &str {
    let mut ends = (0..=MAX_NAME.min(name.len())).rev();
    let end = ends.find(|end| name.is_char_boundary(*end));
    end.and_then(|end| name.get(..end)).unwrap_or_default()
}

/// Functions from all tables, with several names for one address.
#[derive(Debug, Default)]
pub struct Collected {
    candidates: Vec<Candidate>,
    names: usize,
}

impl Collected {
    /// Adds the functions of `table` that are in `segments`; false when there is no table.
    pub fn add_table<H: Header>(
        &mut self,
        table: Option<SymbolTable<'_, H>>,
        endian: Endianness,
        segments: &[Segment],
    ) -> bool {
        let Some(table) = table else {
            return false;
        };
        for symbol in table.symbols {
            let kind = symbol.st_type();
            let is_function = kind == STT_FUNC || kind == STT_GNU_IFUNC;
            let address = symbol.st_value(endian).into();
            if !(is_function || kind == STT_NOTYPE)
                || symbol.st_shndx(endian) == SHN_UNDEF
                || !is_in(segments, address)
            {
                continue;
            }
            let Ok(name) = symbol.name(endian, table.names) else {
                continue;
            };
            let visibility = match symbol.st_bind() {
                STB_GLOBAL => 2,
                STB_WEAK => 1,
                _ => 0,
            };
            let length = symbol.st_size(endian).into();
            // Labels of compilers and linkers (.L1, $x) are no functions.
            if name.is_empty() || !is_function && (visibility == 0 || name[0] == b'.') {
                continue;
            }
            self.add(address, length, name, visibility);
        }
        true
    }

    /// Adds the symbols of an ELF file within the file, packed by xz
    /// (<https://sourceware.org/gdb/current/onlinedocs/gdb.html/MiniDebugInfo.html>).
    pub fn add_debug_data(&mut self, section: Option<(u64, &[u8])>, segments: &[Segment]) {
        let Some((_, packed)) = section else {
            return;
        };
        let reader = lzma_rust2::XzReader::new_mem_limit(packed, false, XZ_MEMORY_KIB);
        let mut bytes = Vec::new();
        let unpacked = reader.take(MAX_DEBUG_DATA).read_to_end(&mut bytes);
        if unpacked.is_ok()
            && let Ok(elf) = Elf::<FileHeader64<Endianness>>::parse(&bytes)
        {
            self.add_table(elf.symbols(SHT_SYMTAB), elf.endian, segments);
        }
    }

    /// Adds `functions` from another source.
    pub fn add_all(&mut self, functions: Vec<BinaryFunction>) {
        for function in functions {
            let BinaryFunction {
                address,
                length,
                name,
            } = function;
            self.add(address, length, name.as_bytes(), 0);
        }
    }

    fn add(&mut self, address: u64, length: u64, name: &[u8], visibility: u8) {
        let name = name.get(..MAX_NAME).unwrap_or(name);
        let name = String::from_utf8_lossy(name).into_owned();
        self.names = self.names.saturating_add(name.len());
        if self.names > MAX_NAMES || self.candidates.len() >= MAX_FUNCTIONS {
            return;
        }
        self.candidates.push(Candidate {
            function: BinaryFunction {
                address,
                length,
                name,
            },
            rank: (length > 0, visibility),
        });
    }

    /// The functions in the order of their addresses, the best name of each.
    pub fn into_functions(mut self) -> Vec<BinaryFunction> {
        self.candidates.sort_by(|left, right| {
            let shortness = |candidate: &Candidate| candidate.function.name.len();
            (left.function.address.cmp(&right.function.address))
                .then_with(|| right.rank.cmp(&left.rank))
                .then_with(|| shortness(left).cmp(&shortness(right)))
                .then_with(|| left.function.name.cmp(&right.function.name))
        });
        let functions = self.candidates.into_iter();
        let mut functions: Vec<_> = functions.map(|candidate| candidate.function).collect();
        functions.dedup_by_key(|function| function.address);
        functions
    }
}

fn is_in(segments: &[Segment], address: u64) -> bool {
    let mut segments = segments.iter();
    segments.any(|segment| address.wrapping_sub(segment.address) < segment.length)
}
