//! One module, or code that the kernel has made: its `struct module`, its functions and its unwind tables.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use kvmprof_abi::kallsyms::{END_KIND, END_NAME, is_function};
use kvmprof_recording::elf::extents::{self, Begin, Extent};

use crate::PhysicalMemory;

use super::super::view::KernelView;
use super::generated::Generated;
use super::module_layout::{
    BUILD_ID_LENGTH, ModuleLayout, NAME_LENGTH, OrcOffsets, SymbolsOffsets,
};
use super::reader::BoundedReader;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use crate::unwind::{Callers, CodeRegion, CodeRules, FramedCode, MODULES, OrcFormat, OrcTable};

/// Maximum length of a contiguous range of code, in bytes.
const MAX_TEXT: u64 = 64 << 20;
/// Maximum number of symbols of a module. The largest modules have some 50,000.
const MAX_SYMBOLS: usize = 1 << 18;
/// Maximum number of ORC entries.
const MAX_ORC: usize = 1 << 21;
/// Bytes of an `Elf64_Sym`: `st_name`, `st_info`, `st_other`, `st_shndx`, `st_value`, `st_size`.
const SYMBOL: usize = 24;
const SYMBOL_INFO: usize = 4;
const SYMBOL_SECTION: usize = 6;
const SYMBOL_VALUE: usize = 8;
const SYMBOL_SIZE: usize = 16;
/// `STT_FUNC`.
const FUNCTION: u8 = 2;
/// `STB_LOCAL`.
const LOCAL: u8 = 0;

/// The members of a `struct module`. While they are unchanged, so is the data that they point to.
#[derive(Debug, PartialEq, Eq)]
pub struct ModuleInfo {
    /// The structure's address.
    address: u64,
    name: String,
    build_id: Option<[u8; BUILD_ID_LENGTH]>,
    texts: Vec<Range<u64>>,
    symbols: Option<SymbolsInfo>,
    orc: Option<OrcInfo>,
    /// What it is, if the kernel has made it at run time.
    generated: Option<Generated>,
}

#[derive(Debug, PartialEq, Eq)]
struct SymbolsInfo {
    table: u64,
    count: usize,
    names: u64,
    letters: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct OrcInfo {
    addresses: u64,
    entries: u64,
    count: usize,
}

/// A function of a module.
struct Function {
    extent: Extent,
    /// The type letter of nm(1).
    letter: u8,
    /// Empty if it isn't known.
    name: String,
}

/// A `struct module` in the list.
pub enum ListedModule {
    /// The module is still loading (`MODULE_STATE_UNFORMED`).
    Unformed,
    /// The structure is invalid.
    Nonsense,
    Formed(ModuleInfo),
}

/// How a kernel's callers are found.
#[derive(Clone, Debug)]
pub enum Unwinding {
    /// By unwind tables.
    Orc(OrcFormat),
    /// By the code: the kernel's own rules, and how far above its link-time addresses it runs.
    Code(Arc<CodeRules>, u64),
    /// By nothing that a module has.
    FramePointers,
}

/// The functions of a module's table.
#[derive(Default)]
struct Functions {
    /// Sorted by address.
    functions: Vec<Function>,
    /// Where all symbols are, sorted.
    symbols: Vec<u64>,
}

/// A module.
#[derive(Debug)]
pub struct Module {
    pub info: ModuleInfo,
    /// Its code with its unwind tables.
    pub code: Vec<CodeRegion>,
    /// Its functions, in the form of `/proc/kallsyms`: each range of code sorted by address, followed by an empty line.
    pub functions: Arc<str>,
}

impl ModuleInfo {
    /// Reads the structure at kernel address `address` from its `bytes`.
    pub fn read<M: PhysicalMemory>(
        layout: &ModuleLayout,
        address: u64,
        bytes: &[u8],
        reader: &mut BoundedReader<'_, M>,
    ) -> ListedModule {
        if u32_at(bytes, layout.state).is_none_or(|state| state == layout.unformed) {
            return ListedModule::Unformed;
        }
        let texts: Vec<_> = (layout.texts.iter())
            .filter_map(|offsets| text(bytes, offsets.base, offsets.length))
            .collect();
        let Some(name) = name(bytes, layout.name).filter(|_| !texts.is_empty()) else {
            return ListedModule::Nonsense;
        };
        ListedModule::Formed(Self {
            address,
            name,
            build_id: layout.build_id.and_then(|offset| array_at(bytes, offset)),
            texts,
            symbols: layout
                .symbols
                .and_then(|offsets| SymbolsInfo::read(offsets, bytes, reader)),
            orc: layout.orc.and_then(|offsets| OrcInfo::read(offsets, bytes)),
            generated: None,
        })
    }

    /// The `code` at `text` that the kernel has made, which the structure at kernel address `address` describes.
    pub fn generated(address: u64, module: &str, text: Range<u64>, code: Generated) -> Self {
        Self {
            address,
            name: module.to_owned(),
            build_id: None,
            texts: vec![text],
            symbols: None,
            orc: None,
            generated: Some(code),
        }
    }

    /// Whether `address` is in the module's code.
    pub fn has_code_at(&self, address: u64) -> bool {
        self.texts.iter().any(|text| text.contains(&address))
    }

    /// The ranges of its code.
    pub fn texts(&self) -> &[Range<u64>] {
        &self.texts
    }

    /// Whether this is the same module as `other`, and still has its range of code `text`.
    pub fn has_text_of(&self, other: &Self, text: &Range<u64>) -> bool {
        self.name == other.name
            && self.build_id == other.build_id
            && self.generated == other.generated
            && self.texts.contains(text)
    }

    /// Whether the module is still loaded, according to a few reads: its name, its code, its build id. Allocates nothing.
    pub fn is_unchanged<M: PhysicalMemory>(
        &self,
        layout: &ModuleLayout,
        view: &KernelView<'_, M>,
    ) -> bool {
        if let (Some(code), Some(text)) = (&self.generated, self.texts.first()) {
            let layout = &layout.generated;
            return layout.is_unchanged(view, self.address, text.start, code);
        }
        let at = |offset: usize| self.address.wrapping_add(offset as u64);
        let is_build = || {
            let (Some(offset), Some(known)) = (layout.build_id, self.build_id) else {
                return true;
            };
            view.read_array::<BUILD_ID_LENGTH>(at(offset)) == Some(known)
        };
        let has_code = || {
            let bases = layout.texts.map(|text| view.u64(at(text.base)));
            self.texts
                .iter()
                .all(|text| bases.contains(&Some(text.start)))
        };
        layout.is_called(view, self.address, &self.name) && has_code() && is_build()
    }
}

impl Module {
    /// Reads the data that `info` points to. Leaves out unreadable parts.
    pub fn read<M: PhysicalMemory>(
        info: ModuleInfo,
        unwinding: &Unwinding,
        reader: &mut BoundedReader<'_, M>,
    ) -> Self {
        let functions = info.functions(reader).unwrap_or_default();
        let tables = match unwinding {
            Unwinding::Orc(format) => info.orc_tables(*format, reader),
            Unwinding::Code(..) | Unwinding::FramePointers => None,
        };
        let mut tables = tables.unwrap_or_default().into_iter();
        let code = (info.texts.iter())
            .map(|range| {
                let table = tables.next().flatten();
                let table = table.map(|table| Callers::Table(Arc::new(table)));
                let mut rules = || functions.rules(range, unwinding, reader);
                CodeRegion {
                    range: range.clone(),
                    callers: table.or_else(|| rules().map(|rules| Callers::Rules(Arc::new(rules)))),
                }
            })
            .collect();
        Self {
            functions: info.lines(&functions).into(),
            info,
            code,
        }
    }

    /// Reads the code that `info` is about, which the kernel has made.
    pub fn generated<M: PhysicalMemory>(
        info: ModuleInfo,
        reader: &mut BoundedReader<'_, M>,
    ) -> Self {
        let mut functions = Functions::default();
        for (text, code) in info.texts.iter().zip(&info.generated) {
            functions.symbols.push(text.start);
            functions.functions.push(Function {
                extent: Extent {
                    address: text.start,
                    size: text.end - text.start,
                },
                letter: b't',
                name: code.name().to_owned(),
            });
        }
        let mut callers = |range: &Range<u64>| match info.generated.as_ref()? {
            Generated::Trampoline(original) => Some(Callers::Copy(*original)),
            Generated::Program(_) => {
                let length = usize::try_from(range.end - range.start).ok()?;
                let code = FramedCode::find(reader.bytes(range.start, length)?, range.start)?;
                Some(Callers::Frame(Arc::new(code)))
            }
        };
        let code = info.texts.iter().map(|range| CodeRegion {
            range: range.clone(),
            callers: callers(range),
        });
        Self {
            code: code.collect(),
            functions: info.lines(&functions).into(),
            info,
        }
    }

    /// Its approximate memory use, in bytes.
    pub fn footprint(&self) -> usize {
        let callers = self
            .code
            .iter()
            .filter_map(|region| region.callers.as_ref());
        let callers: usize = callers.map(Callers::footprint).sum();
        self.functions.len() + callers
    }
}

impl ModuleInfo {
    /// The functions in the module's code.
    fn functions<M: PhysicalMemory>(&self, reader: &mut BoundedReader<'_, M>) -> Option<Functions> {
        let symbols = self.symbols.as_ref()?;
        let table = reader.bytes(symbols.table, symbols.count * SYMBOL)?;
        let letters = match symbols.letters {
            Some(address) => Some(reader.bytes(address, symbols.count)?),
            None => None,
        };
        let mut functions = Vec::new();
        // Where other symbols are.
        let mut others = Vec::new();
        for (index, symbol) in table.chunks_exact(SYMBOL).enumerate() {
            let info = *symbol.get(SYMBOL_INFO)?;
            let address = u64_at(symbol, SYMBOL_VALUE)?;
            let letter = match &letters {
                Some(letters) => *letters.get(index)?,
                None if info & 0xf == FUNCTION => b't',
                None => END_KIND,
            };
            let is_defined = u16_at(symbol, SYMBOL_SECTION)? != 0;
            let is_here = self.texts.iter().any(|text| text.contains(&address));
            if !is_defined || !is_here {
                continue;
            }
            if !is_function(letter) {
                others.push(address);
                continue;
            }
            let name = symbols.names.checked_add(u32_at(symbol, 0)?.into())?;
            let function = Function {
                extent: Extent {
                    address,
                    size: u64_at(symbol, SYMBOL_SIZE)?,
                },
                letter,
                // A function without a readable name is still there.
                name: reader.word(name).unwrap_or_default(),
            };
            // Of several names at one address, the last one is shown: init_module is a global alias.
            functions.push((address, info >> 4 == LOCAL, function));
        }
        functions.sort_by_key(|(address, is_local, _)| (*address, *is_local));
        let functions: Vec<Function> = functions.into_iter().map(|(.., it)| it).collect();
        others.extend(functions.iter().map(|function| function.extent.address));
        others.sort_unstable();
        Some(Functions {
            functions,
            symbols: others,
        })
    }

    /// The functions and their ends, a line each, and an empty line after each range of code.
    fn lines(&self, functions: &Functions) -> String {
        let mut text = String::new();
        for stretch in &self.texts {
            self.add_stretch(stretch, &functions.functions, &functions.symbols, &mut text);
        }
        text
    }

    /// Adds the lines of the `functions` in `stretch` to `text`. `symbols` are the addresses of all symbols.
    fn add_stretch(
        &self,
        stretch: &Range<u64>,
        functions: &[Function],
        symbols: &[u64],
        text: &mut String,
    ) {
        let first = functions.partition_point(|it| it.extent.address < stretch.start);
        let functions = functions.get(first..).unwrap_or_default();
        let count = functions.partition_point(|it| it.extent.address < stretch.end);
        let functions = functions.get(..count).unwrap_or_default();
        let extents: Vec<Extent> = functions
            .iter()
            .map(|function| {
                let Extent { address, size } = function.extent;
                let size = size.min(stretch.end - address);
                Extent { address, size }
            })
            .collect();
        let next = |address: u64| {
            let after = symbols.partition_point(|symbol| *symbol <= address);
            Some(
                symbols
                    .get(after)
                    .map_or(stretch.end, |next| stretch.end.min(*next)),
            )
        };
        for (address, begin) in extents::begins(&extents, next) {
            let function = match begin {
                Begin::Function(index) => functions.get(index),
                Begin::Unknown => None,
            };
            let (letter, name) = match function {
                Some(function) if !function.name.is_empty() => (function.letter, &*function.name),
                _ => (END_KIND, END_NAME),
            };
            let letter = char::from(letter);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{address:016x} {letter} {name}\t[{}]", self.name);
        }
        // The next range isn't adjacent to this one.
        if !functions.is_empty() {
            text.push('\n');
        }
    }

    /// The unwind tables of each range of code.
    fn orc_tables<M: PhysicalMemory>(
        &self,
        format: OrcFormat,
        reader: &mut BoundedReader<'_, M>,
    ) -> Option<Vec<Option<OrcTable>>> {
        let info = self.orc.as_ref()?;
        let addresses = reader.bytes(info.addresses, info.count * OrcTable::ADDRESS)?;
        let entries = reader.bytes(info.entries, info.count * OrcTable::ENTRY)?;
        let table = |range: &Range<u64>| {
            OrcTable::parse_within(info.addresses, &addresses, &entries, format, range)
        };
        Some(self.texts.iter().map(table).collect())
    }
}

impl Functions {
    /// The rules for the code in `range`, if that is how callers are found.
    fn rules<M: PhysicalMemory>(
        &self,
        range: &Range<u64>,
        unwinding: &Unwinding,
        reader: &mut BoundedReader<'_, M>,
    ) -> Option<CodeRules> {
        let Unwinding::Code(kernel, slide) = unwinding else {
            return None;
        };
        let length = usize::try_from(range.end - range.start).ok()?;
        let code = reader.bytes(range.start, length)?;
        let named = (self.functions.iter()).map(|it| (it.extent.address, &*it.name));
        Some(CodeRules::of_module(
            code,
            range.start,
            named,
            kernel,
            *slide,
        ))
    }
}

impl SymbolsInfo {
    fn read<M: PhysicalMemory>(
        offsets: SymbolsOffsets,
        module: &[u8],
        reader: &mut BoundedReader<'_, M>,
    ) -> Option<Self> {
        let bytes = reader.bytes(u64_at(module, offsets.pointer)?, offsets.length)?;
        Some(Self {
            table: u64_at(&bytes, offsets.table)?,
            count: count(&bytes, offsets.count, MAX_SYMBOLS)?,
            names: u64_at(&bytes, offsets.names)?,
            letters: match offsets.letters {
                Some(offset) => Some(u64_at(&bytes, offset)?),
                None => None,
            },
        })
    }
}

impl OrcInfo {
    fn read(offsets: OrcOffsets, module: &[u8]) -> Option<Self> {
        Some(Self {
            addresses: u64_at(module, offsets.addresses)?,
            entries: u64_at(module, offsets.entries)?,
            count: count(module, offsets.count, MAX_ORC)?,
        })
    }
}

/// A range of code, if it is in the range of modules.
fn text(bytes: &[u8], base: usize, length: usize) -> Option<Range<u64>> {
    let start = u64_at(bytes, base)?;
    let length = u64::from(u32_at(bytes, length)?);
    let text = start..start.checked_add(length)?;
    is_sound(&text).then_some(text)
}

/// Whether it is a range of code in the range of modules.
pub fn is_sound(text: &Range<u64>) -> bool {
    let length = text.end.saturating_sub(text.start);
    (1..=MAX_TEXT).contains(&length) && text.start >= MODULES.start && text.end <= MODULES.end
}

/// The 32-bit number at `offset`. `None` if it is more than `most`.
fn count(bytes: &[u8], offset: usize, most: usize) -> Option<usize> {
    let count = usize::try_from(u32_at(bytes, offset)?).ok()?;
    (1..=most).contains(&count).then_some(count)
}

/// The module's name. `None` if it is invalid.
fn name(bytes: &[u8], offset: usize) -> Option<String> {
    let name: [u8; NAME_LENGTH] = array_at(bytes, offset)?;
    let name = name.split(|byte| *byte == 0).next()?;
    let is_sound = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (!name.is_empty() && name.iter().all(is_sound))
        .then(|| String::from_utf8_lossy(name).into_owned())
}
