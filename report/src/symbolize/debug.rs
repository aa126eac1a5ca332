//! Debug information (DWARF): functions, inlined ones too, and source lines.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use addr2line::{LookupContinuation, LookupResult};
use gimli::{Dwarf, EndianArcSlice, LittleEndian};
use object::read::elf::ElfFile64;
use object::read::{CompressedData, CompressedFileRange, ReadCache};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

use kvmprof_recording::elf::{MAX_NAMES_BYTES, hex};

use super::demangle::demangle;
use super::functions::FunctionTable;
use super::split::SplitFiles;

/// Maximum size of a section in bytes, compressed and uncompressed.
const MAX_SECTION: u64 = 4 << 30;
/// Maximum ratio of a section's uncompressed size to its size, and the uncompressed size that is always allowed, in bytes. Compression of debug
/// information saves two thirds, and nine tenths if there are many equal parts.
const MAX_RATIO: u64 = 64;
const ALWAYS_ALLOWED: u64 = 16 << 20;
/// Maximum number of functions of a file's symbol table.
const MAX_FUNCTIONS: usize = 1 << 21;
/// Maximum number of nested inlined functions.
const MAX_INLINED: usize = 64;

pub type Slice = EndianArcSlice<LittleEndian>;
pub type Parsed<'a> = ElfFile64<'a, Endianness, &'a ReadCache<File>>;

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLine {
    /// The path that the compiler was given.
    pub file: Arc<str>,
    /// The line, from 1; 0 when unknown.
    pub line: u32,
}

/// A function at an address. In a list of them, innermost first, all but the last are inlined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugFrame {
    /// Its name; `None` when unknown.
    pub name: Option<String>,
    /// Its source file and line.
    pub source: Option<SourceLine>,
}

/// A file with debug information or a symbol table.
pub struct DebugFile {
    /// Its build id in hexadecimal; empty if it has none.
    pub build_id: String,
    /// The functions of its symbol table.
    pub functions: FunctionTable,
    /// False if it has more of them than are read.
    pub is_whole: bool,
    context: Option<addr2line::Context<Slice>>,
    split: Option<SplitFiles>,
    begin: Option<u64>,
}

impl std::fmt::Debug for DebugFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("DebugFile");
        fields.field("build_id", &self.build_id);
        fields.field("has_lines", &self.context.is_some());
        fields.finish_non_exhaustive()
    }
}

impl DebugFile {
    /// Reads `file`. `supplement` opens a file that this one shares information with, by path or build id (DWARF 5,
    /// 7.3.6; dwz(1)).
    ///
    /// # Errors
    /// It can't be read, or isn't a 64-bit ELF file.
    pub fn read(file: &File, supplement: impl Fn(&[u8], &str) -> Option<File>) -> io::Result<Self> {
        let cache = ReadCache::new(file.try_clone()?);
        let elf = Parsed::parse(&cache).map_err(invalid)?;
        let mut dwarf = dwarf(file, &elf)?;
        if let Ok(Some((path, id))) = elf.gnu_debugaltlink()
            && let Some(file) = supplement(path, &hex(id))
        {
            let cache = ReadCache::new(file.try_clone()?);
            let elf = Parsed::parse(&cache).map_err(invalid)?;
            dwarf.load_sup(|id| section(&file, &elf, id.name()))?;
        }
        let has_lines = elf.section_by_name(".debug_info").is_some();
        let context = has_lines.then(|| addr2line::Context::from_dwarf(dwarf));
        let mut table = Self {
            build_id: hex(elf.build_id().ok().flatten().unwrap_or_default()),
            functions: FunctionTable::default(),
            is_whole: true,
            context: context.and_then(Result::ok),
            split: None,
            begin: None,
        };
        table.read_functions(&elf);
        Ok(table)
    }

    /// The same with `split`, where its units are that lie in other files.
    #[must_use]
    pub fn with_split(mut self, split: SplitFiles) -> Self {
        self.split = Some(split);
        self
    }

    fn read_functions(&mut self, elf: &Parsed<'_>) {
        let mut left = MAX_NAMES_BYTES;
        let mut begin = None;
        let mut is_whole = elf.symbols().nth(MAX_FUNCTIONS).is_none();
        let symbols = elf.symbols().take(MAX_FUNCTIONS).map_while(|symbol| {
            let name = symbol.name().unwrap_or_default();
            let Some(rest) = left.checked_sub(name.len()) else {
                is_whole = false;
                return None;
            };
            left = rest;
            // `_stext` is a label, not a function.
            if begin.is_none() && name == super::KERNEL_BEGIN {
                begin = Some(symbol.address());
            }
            let is_function = symbol.is_definition() && matches!(symbol.kind(), SymbolKind::Text);
            let is_named = is_function && !name.is_empty();
            Some(is_named.then(|| (symbol.address(), symbol.size(), name)))
        });
        self.functions = FunctionTable::new(symbols.flatten());
        self.is_whole = is_whole;
        self.begin = begin;
    }

    /// The address of `_stext`, the begin of a kernel's code.
    pub fn kernel_begin(&self) -> Option<u64> {
        self.begin
    }

    /// Whether it has more than a symbol table.
    pub fn has_lines(&self) -> bool {
        self.context.is_some()
    }

    /// The functions at `address`, innermost first. Missing and invalid information is left out.
    pub fn frames(&self, address: u64) -> Vec<DebugFrame> {
        let Some(context) = &self.context else {
            return Vec::new();
        };
        let mut looked_up = context.find_frames(address);
        let frames = loop {
            looked_up = match looked_up {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => {
                    let split = self.split.as_ref();
                    continuation.resume(split.and_then(|split| split.load(&load)))
                }
            };
        };
        let Ok(mut frames) = frames else {
            return Vec::new();
        };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next()
            && found.len() < MAX_INLINED
        {
            let name = frame.function.as_ref();
            let name = name.and_then(|name| name.raw_name().ok());
            let source = frame.location.and_then(|location| {
                Some(SourceLine {
                    file: location.file?.into(),
                    line: location.line.unwrap_or(0),
                })
            });
            found.push(DebugFrame {
                name: name.map(|name| demangle(&name).into_owned()),
                source,
            });
        }
        found
    }
}

fn dwarf(file: &File, elf: &Parsed<'_>) -> io::Result<Dwarf<Slice>> {
    Dwarf::load(|id| section(file, elf, id.name()))
}

/// Whether the ratio of `range` is higher than that of any debug information: such a section is there to fill the memory.
fn is_bomb(range: &CompressedFileRange) -> bool {
    let most = range.compressed_size.saturating_mul(MAX_RATIO);
    range.uncompressed_size > most.saturating_add(ALWAYS_ALLOWED)
}

/// A section that isn't there.
pub fn no_section() -> Slice {
    Slice::new(Arc::from([]), LittleEndian)
}

/// The decompressed contents of the section called `name`; empty if there is none. Bypasses the cache, which would keep them too.
pub fn section(file: &File, elf: &Parsed<'_>, name: &str) -> io::Result<Slice> {
    let Some(section) = elf.section_by_name(name) else {
        return Ok(no_section());
    };
    let range = section.compressed_file_range().map_err(invalid)?;
    let length = file.metadata()?.len();
    let is_there = range.compressed_size <= length.saturating_sub(range.offset);
    if !is_there || range.compressed_size.max(range.uncompressed_size) > MAX_SECTION {
        return Err(invalid("a section is larger than the file"));
    }
    if is_bomb(&range) {
        return Err(invalid(
            "a section unpacks to far more than debug information does",
        ));
    }
    let size = usize::try_from(range.compressed_size).map_err(invalid)?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, range.offset)?;
    let packed = CompressedData {
        format: range.format,
        data: &bytes,
        uncompressed_size: range.uncompressed_size,
    };
    let contents: Arc<[u8]> = packed.decompress().map_err(invalid)?.into();
    Ok(Slice::new(contents, LittleEndian))
}

pub fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use object::read::CompressionFormat;

    use super::*;

    #[test]
    fn sections_that_fill_the_memory_are_refused() {
        let range = |compressed_size, uncompressed_size| CompressedFileRange {
            format: CompressionFormat::Zstandard,
            offset: 0,
            compressed_size,
            uncompressed_size,
        };
        assert!(is_bomb(&range(262_000, 4 << 30)));
        assert!(is_bomb(&range(262_000, 40 << 20)));
        assert!(!is_bomb(&range(1000, 10 << 20)));
        assert!(!is_bomb(&range(100 << 20, 1 << 30)));
    }
}
