//! Reads functions from symbol tables.

use std::io::Read;

use object::Endianness;
use object::elf::{
    FileHeader64, SHN_ABS, SHN_UNDEF, SHT_SYMTAB, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC,
    STT_NOTYPE, STT_OBJECT, SymbolType,
};
use object::read::StringTable;
use object::read::elf::Sym;

use super::file::{Elf, Header, SymbolTable};
use super::go::GoTable;
use crate::file::{BinaryFunction, Segment};

/// Maximum number of functions of a file.
pub const MAX_FUNCTIONS: usize = 1 << 20;
/// Maximum length of a name in bytes. Longer names are cut off.
pub const MAX_NAME: usize = 4096;
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
    /// The higher, the better: whether it has a name, whether it is more than a local label, whether it has a length, how visible it is.
    rank: (bool, bool, bool, u8),
}

/// What kind of symbol a candidate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Function,
    /// A label, perhaps within a function: assembly code has functions that say no more of themselves.
    Label,
}

/// A symbol's name, cut off at the maximum length.
pub fn bounded_name(name: &str) -> &str {
    let mut ends = (0..=MAX_NAME.min(name.len())).rev();
    let end = ends.find(|end| name.is_char_boundary(*end));
    end.and_then(|end| name.get(..end)).unwrap_or_default()
}

/// The address and the length of `symbol` if it is of this kind and called `name`, and is in its file.
pub fn named<Symbol: Sym<Endian = Endianness>>(
    symbol: &Symbol,
    endian: Endianness,
    names: StringTable<'_>,
    (kind, name): (SymbolType, &str),
) -> Option<(u64, u64)> {
    let is_there = symbol.st_type() == kind && symbol.st_shndx(endian) != SHN_UNDEF;
    let found = is_there.then(|| symbol.name(endian, names).ok())?;
    let place = (
        symbol.st_value(endian).into(),
        symbol.st_size(endian).into(),
    );
    (found? == name.as_bytes()).then_some(place)
}

/// Functions from all tables, with several names for one address.
#[derive(Debug)]
pub struct CollectedFunctions {
    candidates: Vec<Candidate>,
    /// The maximum number of candidates.
    room: usize,
    /// How many bytes of names there is still room for.
    names: usize,
    /// The addresses of data among the code.
    data: Vec<u64>,
    /// The number of functions that have no name here, or aren't here at all, because there were too many.
    unnamed: usize,
    is_cut: bool,
}

impl Default for CollectedFunctions {
    fn default() -> Self {
        Self::with_room(MAX_FUNCTIONS, MAX_NAMES)
    }
}

impl CollectedFunctions {
    /// Nothing yet, with room for `room` functions and `names` bytes of names.
    pub fn with_room(room: usize, names: usize) -> Self {
        Self {
            candidates: Vec::new(),
            room,
            names,
            data: Vec::new(),
            unnamed: 0,
            is_cut: false,
        }
    }

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
            let section = symbol.st_shndx(endian);
            let address = symbol.st_value(endian).into();
            if section == SHN_UNDEF || !is_in(segments, address) {
                continue;
            }
            if kind == STT_OBJECT && self.data.len() < self.room {
                self.data.push(address);
            }
            if !(is_function || kind == STT_NOTYPE && section != SHN_ABS) {
                continue;
            }
            // A function whose name can't be read is still there.
            let name = symbol.name(endian, table.names).unwrap_or_default();
            let visibility = match symbol.st_bind() {
                STB_GLOBAL => 2,
                STB_WEAK => 1,
                _ => 0,
            };
            let length = symbol.st_size(endian).into();
            // Labels of compilers and linkers (.L1, $x) are no functions.
            if !is_function && matches!(name.first(), None | Some(b'.' | b'$')) {
                continue;
            }
            let form = if is_function || visibility > 0 {
                Form::Function
            } else {
                Form::Label
            };
            self.add(address, length, name, form, visibility);
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

    /// Adds the functions of a Go program that are in `segments`.
    pub fn add_go(&mut self, table: Option<GoTable<'_>>, segments: &[Segment]) {
        let functions = table.into_iter().flat_map(|table| table.functions());
        for function in functions.filter(|function| is_in(segments, function.begin)) {
            let length = function.end - function.begin;
            self.add(function.begin, length, function.name, Form::Function, 0);
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
            self.add(address, length, name.as_bytes(), Form::Function, 0);
        }
    }

    fn add(&mut self, address: u64, length: u64, name: &[u8], form: Form, visibility: u8) {
        if self.candidates.len() >= self.room {
            (self.unnamed, self.is_cut) = (self.unnamed + 1, true);
            return;
        }
        let name = name.get(..MAX_NAME).unwrap_or(name);
        let mut name = String::from_utf8_lossy(name).into_owned();
        if name.len() > self.names {
            self.unnamed += 1;
            name.clear();
        }
        self.names -= name.len();
        self.candidates.push(Candidate {
            rank: (
                !name.is_empty(),
                form == Form::Function,
                length > 0,
                visibility,
            ),
            function: BinaryFunction {
                address,
                length,
                name,
            },
        });
    }

    /// The functions in the order of their addresses, the best name of each. Those of assembly code have no lengths yet.
    pub fn functions(&mut self) -> Vec<BinaryFunction> {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.sort_by(|left, right| {
            let shortness = |candidate: &Candidate| candidate.function.name.len();
            (left.function.address.cmp(&right.function.address))
                .then_with(|| right.rank.cmp(&left.rank))
                .then_with(|| shortness(left).cmp(&shortness(right)))
                .then_with(|| left.function.name.cmp(&right.function.name))
        });
        // One symbol may have the better name, and another one the length.
        candidates.dedup_by(|other, best| {
            let is_same = other.function.address == best.function.address;
            if is_same && best.function.length == 0 {
                best.function.length = other.function.length;
            }
            is_same
        });
        // Local labels within a function are a part of it.
        let mut end = 0;
        candidates.retain(|candidate| {
            let BinaryFunction {
                address, length, ..
            } = candidate.function;
            let (_, is_function, ..) = candidate.rank;
            let is_kept = is_function || address >= end;
            end = end.max(address.saturating_add(length));
            is_kept
        });
        let functions = candidates.into_iter();
        functions.map(|candidate| candidate.function).collect()
    }

    /// Gives each of `functions` a length, which are all that the file has, by address. One whose length the file doesn't tell ends at the
    /// next function, at data, with the function around it, or at the end of its section, whatever comes first. `code` are the places of
    /// sections with code.
    pub fn bound(&mut self, functions: &mut [BinaryFunction], code: &[(u64, u64)]) {
        self.data.sort_unstable();
        let mut around = 0;
        for index in 0..functions.len() {
            let next = functions.get(index + 1).map(|next| next.address);
            let Some(function) = functions.get_mut(index) else {
                break;
            };
            let address = function.address;
            if function.length == 0 {
                let data = self.data.partition_point(|data| *data <= address);
                let data = self.data.get(data).copied();
                let mut sections = code.iter();
                let section = sections.find(|(begin, end)| (*begin..*end).contains(&address));
                let section = section.map(|(_, end)| *end);
                let around = Some(around).filter(|around| *around > address);
                let ends = [next, data, section, around];
                let end = ends.into_iter().flatten().min();
                // The next function may be among those that aren't here.
                let end = end.filter(|_| !self.is_cut);
                function.length = end.map_or(1, |end| end - address);
            }
            around = around.max(address.saturating_add(function.length));
        }
    }

    /// The number of functions that are without a name because the file has more or longer names than are read.
    pub fn unnamed(&self) -> usize {
        self.unnamed
    }
}

fn is_in(segments: &[Segment], address: u64) -> bool {
    let mut segments = segments.iter();
    segments.any(|segment| address.wrapping_sub(segment.address) < segment.length)
}
