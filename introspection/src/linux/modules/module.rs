//! One module: what its `struct module` says, and what that leads to.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use crate::PhysicalMemory;

use super::super::view::KernelView;
use super::module_layout::{BUILD_ID_LENGTH, ModuleLayout, NAME_LENGTH, OrcPlace, SymbolsPlace};
use super::reader::BoundedReader;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use crate::unwind::{CodeRegion, MODULES, OrcFormat, OrcTable};

/// Longest stretch of code, in bytes.
const MAX_TEXT: u64 = 64 << 20;
/// Most symbols of a module: the largest have some 50,000.
const MAX_SYMBOLS: usize = 1 << 18;
/// Most entries for unwinding.
const MAX_ORC: usize = 1 << 21;
/// Bytes of an `Elf64_Sym`, which starts with `st_name`, `st_info`, `st_other`, `st_shndx`, `st_value`.
const SYMBOL: usize = 24;
const SYMBOL_INFO: usize = 4;
const SYMBOL_SECTION: usize = 6;
const SYMBOL_VALUE: usize = 8;
/// `STT_FUNC`.
const FUNCTION: u8 = 2;
/// `STB_LOCAL`.
const LOCAL: u8 = 0;

/// What a `struct module` says. While it says the same, what it leads to is the same.
#[derive(Debug, PartialEq, Eq)]
pub struct ModuleFacts {
    /// Where the structure is.
    address: u64,
    name: String,
    build_id: Option<[u8; BUILD_ID_LENGTH]>,
    texts: Vec<Range<u64>>,
    symbols: Option<SymbolsFacts>,
    orc: Option<OrcFacts>,
}

#[derive(Debug, PartialEq, Eq)]
struct SymbolsFacts {
    table: u64,
    count: usize,
    names: u64,
    letters: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct OrcFacts {
    addresses: u64,
    entries: u64,
    count: usize,
}

/// A `struct module` as it was found in the list.
pub enum Found {
    /// It has only been announced.
    Unformed,
    /// It makes no sense.
    Nonsense,
    Module(ModuleFacts),
}

/// A module.
#[derive(Debug)]
pub struct Module {
    pub facts: ModuleFacts,
    /// Its code, and the tables for unwinding it.
    pub code: Vec<CodeRegion>,
    /// Its functions, in the form of `/proc/kallsyms`: those of each stretch of its code by address, and an empty line.
    pub functions: Arc<str>,
}

impl ModuleFacts {
    /// Reads the structure at kernel address `address`, of which these are the bytes.
    pub fn read<M: PhysicalMemory>(
        layout: &ModuleLayout,
        address: u64,
        bytes: &[u8],
        reader: &mut BoundedReader<'_, M>,
    ) -> Found {
        if u32_at(bytes, layout.state).is_none_or(|state| state == layout.unformed) {
            return Found::Unformed;
        }
        let texts: Vec<_> = (layout.texts.iter())
            .filter_map(|place| text(bytes, place.base, place.length))
            .collect();
        let Some(name) = name(bytes, layout.name).filter(|_| !texts.is_empty()) else {
            return Found::Nonsense;
        };
        Found::Module(Self {
            address,
            name,
            build_id: layout.build_id.and_then(|offset| array_at(bytes, offset)),
            texts,
            symbols: layout
                .symbols
                .and_then(|place| SymbolsFacts::read(place, bytes, reader)),
            orc: layout.orc.and_then(|place| OrcFacts::read(place, bytes)),
        })
    }
}

impl ModuleFacts {
    /// Whether `address` is in the module's code.
    pub fn has_code_at(&self, address: u64) -> bool {
        self.texts.iter().any(|text| text.contains(&address))
    }

    /// Whether the module is still there, as far as few reads can tell: its name, its code, its build id. Allocates
    /// nothing.
    pub fn still_hold<M: PhysicalMemory>(
        &self,
        layout: &ModuleLayout,
        view: &KernelView<'_, M>,
    ) -> bool {
        let place = |offset: usize| self.address.wrapping_add(offset as u64);
        let is_build = || {
            let (Some(offset), Some(known)) = (layout.build_id, self.build_id) else {
                return true;
            };
            let mut build_id = [0; BUILD_ID_LENGTH];
            (view.read(place(offset), &mut build_id)).is_some() && build_id == known
        };
        let has_code = || {
            let bases = layout.texts.map(|text| view.u64(place(text.base)));
            self.texts
                .iter()
                .all(|text| bases.contains(&Some(text.start)))
        };
        let mut name = [0; NAME_LENGTH];
        view.read(place(layout.name), &mut name).is_some()
            && (name.split(|byte| *byte == 0).next()) == Some(self.name.as_bytes())
            && has_code()
            && is_build()
    }
}

impl Module {
    /// Reads what `facts` lead to. What can't be read is missing.
    pub fn read<M: PhysicalMemory>(
        facts: ModuleFacts,
        format: Option<OrcFormat>,
        reader: &mut BoundedReader<'_, M>,
    ) -> Self {
        let functions = facts.functions(reader).unwrap_or_default();
        let tables = format.and_then(|format| facts.orc_tables(format, reader));
        let mut tables = tables.unwrap_or_default().into_iter();
        let code = (facts.texts.iter())
            .map(|range| CodeRegion {
                range: range.clone(),
                orc: tables.next().flatten().map(Arc::new),
            })
            .collect();
        Self {
            facts,
            code,
            functions: functions.into(),
        }
    }

    /// About how much memory it takes, in bytes.
    pub fn footprint(&self) -> usize {
        let tables = self.code.iter().filter_map(|region| region.orc.as_ref());
        let tables: usize = tables.map(|orc| orc.footprint()).sum();
        self.functions.len() + tables
    }
}

impl ModuleFacts {
    /// The functions in the module's code, a line each, and an empty line behind each stretch.
    fn functions<M: PhysicalMemory>(&self, reader: &mut BoundedReader<'_, M>) -> Option<String> {
        let facts = self.symbols.as_ref()?;
        let table = reader.bytes(facts.table, facts.count * SYMBOL)?;
        let letters = match facts.letters {
            Some(address) => Some(reader.bytes(address, facts.count)?),
            None => None,
        };
        let mut functions = Vec::new();
        for (index, symbol) in table.chunks_exact(SYMBOL).enumerate() {
            let info = *symbol.get(SYMBOL_INFO)?;
            let address = u64_at(symbol, SYMBOL_VALUE)?;
            let letter = match &letters {
                Some(letters) => *letters.get(index)?,
                None if info & 0xf == FUNCTION => b't',
                None => continue,
            };
            let is_defined = u16_at(symbol, SYMBOL_SECTION)? != 0;
            let is_here = self.texts.iter().any(|text| text.contains(&address));
            if !is_defined || !is_here || !matches!(letter, b't' | b'T' | b'w' | b'W') {
                continue;
            }
            let place = facts.names.checked_add(u32_at(symbol, 0)?.into())?;
            if let Some(name) = reader.word(place) {
                // Of several names the last one is shown: init_module is another one's, and global.
                functions.push((address, info >> 4 == LOCAL, letter, name));
            }
        }
        functions.sort_by_key(|(address, is_local, ..)| (*address, *is_local));
        let mut text = String::new();
        for stretch in &self.texts {
            let begun = text.len();
            for (address, _, letter, name) in &functions {
                if stretch.contains(address) {
                    let letter = char::from(*letter);
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "{address:016x} {letter} {name}\t[{}]", self.name);
                }
            }
            // Whatever comes next isn't side by side with it.
            if text.len() > begun {
                text.push('\n');
            }
        }
        Some(text)
    }

    /// The tables for unwinding each stretch of code.
    fn orc_tables<M: PhysicalMemory>(
        &self,
        format: OrcFormat,
        reader: &mut BoundedReader<'_, M>,
    ) -> Option<Vec<Option<OrcTable>>> {
        let facts = self.orc.as_ref()?;
        let addresses = reader.bytes(facts.addresses, facts.count * OrcTable::ADDRESS)?;
        let entries = reader.bytes(facts.entries, facts.count * OrcTable::ENTRY)?;
        let table = |range: &Range<u64>| {
            OrcTable::parse_within(facts.addresses, &addresses, &entries, format, range)
        };
        Some(self.texts.iter().map(table).collect())
    }
}

impl SymbolsFacts {
    fn read<M: PhysicalMemory>(
        place: SymbolsPlace,
        module: &[u8],
        reader: &mut BoundedReader<'_, M>,
    ) -> Option<Self> {
        let bytes = reader.bytes(u64_at(module, place.pointer)?, place.length)?;
        Some(Self {
            table: u64_at(&bytes, place.table)?,
            count: count(&bytes, place.count, MAX_SYMBOLS)?,
            names: u64_at(&bytes, place.names)?,
            letters: match place.letters {
                Some(offset) => Some(u64_at(&bytes, offset)?),
                None => None,
            },
        })
    }
}

impl OrcFacts {
    fn read(place: OrcPlace, module: &[u8]) -> Option<Self> {
        Some(Self {
            addresses: u64_at(module, place.addresses)?,
            entries: u64_at(module, place.entries)?,
            count: count(module, place.count, MAX_ORC)?,
        })
    }
}

/// A stretch of code, if it is where modules are.
fn text(bytes: &[u8], base: usize, length: usize) -> Option<Range<u64>> {
    let start = u64_at(bytes, base)?;
    let length = u64::from(u32_at(bytes, length)?);
    let end = start.checked_add(length)?;
    let is_sound = (1..=MAX_TEXT).contains(&length) && start >= MODULES.start && end <= MODULES.end;
    is_sound.then_some(start..end)
}

/// The number of 32 bits at `offset`, if it isn't too large.
fn count(bytes: &[u8], offset: usize, most: usize) -> Option<usize> {
    let count = usize::try_from(u32_at(bytes, offset)?).ok()?;
    (1..=most).contains(&count).then_some(count)
}

/// The module's name, if it is one.
fn name(bytes: &[u8], offset: usize) -> Option<String> {
    let name: [u8; NAME_LENGTH] = array_at(bytes, offset)?;
    let name = name.split(|byte| *byte == 0).next()?;
    let is_sound = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (!name.is_empty() && name.iter().all(is_sound))
        .then(|| String::from_utf8_lossy(name).into_owned())
}
