//! Debug information (DWARF; without it, the tables of Go's runtime): functions, inlined ones too, and source lines.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use addr2line::{LookupContinuation, LookupResult};
use gimli::{DwLang, Dwarf, EndianArcSlice, LittleEndian};
use object::read::elf::ElfFile64;
use object::read::elf::ProgramHeader;
use object::read::{CompressedData, CompressedFileRange, ReadCache};
use object::{Endianness, Object, ObjectSection, SectionFlags, elf};

use kvmprof_recording::elf::go::{self, GoLines};
use kvmprof_recording::elf::{SymbolSections, hex};
use kvmprof_recording::file::Segment;

use super::demangle::demangle;
use super::functions::FunctionTable;
use super::host_copy;
use super::scopes::UnitScopes;
use super::split::SplitFiles;

/// Maximum size of a section in bytes, compressed and uncompressed.
const MAX_SECTION: u64 = 4 << 30;
/// Maximum ratio of a section's uncompressed size to its size, and the uncompressed size that is always allowed, in bytes. Compression of debug
/// information saves two thirds, and nine tenths if there are many equal parts.
const MAX_RATIO: u64 = 64;
const ALWAYS_ALLOWED: u64 = 16 << 20;
/// Maximum number of executable segments and of sections with code.
const MAX_PARTS: usize = 256;
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
    /// Of a program of Go without DWARF.
    go: Option<GoLines>,
    split: Option<SplitFiles>,
    scopes: UnitScopes,
    /// The address of `_stext`, the start of a kernel's code.
    pub kernel_begin: Option<u64>,
}

impl std::fmt::Debug for DebugFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("DebugFile");
        fields.field("build_id", &self.build_id);
        fields.field("has_dwarf", &self.context.is_some());
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
        let has_dwarf = elf.section_by_name(".debug_info").is_some();
        let context = has_dwarf.then(|| addr2line::Context::from_dwarf(dwarf));
        let mut table = Self {
            build_id: hex(elf.build_id().ok().flatten().unwrap_or_default()),
            functions: FunctionTable::default(),
            is_whole: true,
            context: context.and_then(Result::ok),
            go: (!has_dwarf).then(|| go_lines(file, &elf)).flatten(),
            split: None,
            scopes: UnitScopes::default(),
            kernel_begin: None,
        };
        table.read_functions(file, &elf)?;
        Ok(table)
    }

    /// The same with `split`, for units in other files.
    #[must_use]
    pub fn with_split(mut self, split: SplitFiles) -> Self {
        self.split = Some(split);
        self
    }

    fn read_functions(&mut self, file: &File, elf: &Parsed<'_>) -> io::Result<()> {
        let table = elf.elf_symbol_table();
        if table.is_empty() {
            return Ok(());
        }
        let contents = |index| match elf.section_by_index(index) {
            Ok(section) => contents(file, &section),
            Err(error) => Err(invalid(error)),
        };
        let (symbols, names) = (
            contents(table.section())?,
            contents(table.string_section())?,
        );
        let sections = SymbolSections {
            symbols: symbols.bytes(),
            names: names.bytes(),
            segments: &executable_segments(elf),
            code: &code(elf),
        };
        let (functions, unnamed) = sections.functions();
        self.functions = FunctionTable::of_binary(&functions);
        self.is_whole = unnamed == 0;
        // It is a label, which needn't be a function.
        self.kernel_begin = sections.address_of(super::KERNEL_BEGIN);
        Ok(())
    }

    /// Whether it has DWARF.
    pub fn has_dwarf(&self) -> bool {
        self.context.is_some()
    }

    /// Whether it has anything.
    pub fn is_useful(&self) -> bool {
        self.has_dwarf() || self.go.is_some() || !self.functions.is_empty()
    }

    /// The functions at `address`, innermost first. Missing and invalid information is left out.
    pub fn frames(&self, address: u64) -> Vec<DebugFrame> {
        let Some(context) = &self.context else {
            return self
                .go
                .as_ref()
                .map_or_else(Vec::new, |go| go_frames(go, address));
        };
        let Ok(mut frames) = self.looked_up(context.find_frames(address)) else {
            return Vec::new();
        };
        let mut unit = None;
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next()
            && found.len() < MAX_INLINED
        {
            let name = frame.function.as_ref();
            let name = name.and_then(|name| name.raw_name().ok());
            let is_cpp = frame
                .function
                .as_ref()
                .and_then(|name| name.language)
                .is_some_and(is_cpp);
            let name = name.map(|name| match frame.dw_die_offset.filter(|_| is_cpp) {
                Some(offset) => {
                    let unit = *unit.get_or_insert_with(|| {
                        self.looked_up(context.find_dwarf_and_unit(address))
                    });
                    let qualified =
                        unit.and_then(|unit| self.scopes.qualified(unit, offset, &name));
                    qualified.unwrap_or_else(|| demangle(&name).into_owned())
                }
                None => demangle(&name).into_owned(),
            });
            let source = frame.location.and_then(|location| {
                Some(SourceLine {
                    file: location.file?.into(),
                    line: location.line.unwrap_or(0),
                })
            });
            found.push(DebugFrame { name, source });
        }
        found
    }

    /// The result of a lookup, with units out of other files where it needs them.
    fn looked_up<L: LookupContinuation<Buf = Slice>>(
        &self,
        mut result: LookupResult<L>,
    ) -> L::Output {
        loop {
            result = match result {
                LookupResult::Output(output) => return output,
                LookupResult::Load { load, continuation } => {
                    let split = self.split.as_ref();
                    continuation.resume(split.and_then(|split| split.load(&load)))
                }
            };
        }
    }
}

/// The tables of Go's runtime in `file`.
fn go_lines(file: &File, elf: &Parsed<'_>) -> Option<GoLines> {
    elf.section_by_name(go::MARK)?;
    GoLines::read(&host_copy::read_whole(file).ok()?)
}

fn go_frames(go: &GoLines, address: u64) -> Vec<DebugFrame> {
    let frames = go.frames(address);
    let outermost = frames.len().saturating_sub(1);
    let frames = frames.into_iter().enumerate();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let frames = frames.map(|(index, frame)| DebugFrame {
        // A symbol says more than the table of the function that has others inlined.
        name: (index < outermost).then(|| text(frame.name)),
        source: frame.source.map(|(file, line)| SourceLine {
            file: text(file).into(),
            line,
        }),
    });
    frames.collect()
}

/// Whether a unit in `language` has namespaces.
fn is_cpp(language: DwLang) -> bool {
    matches!(
        language,
        gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20
    )
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

/// The executable segments, with their lengths in memory.
fn executable_segments(elf: &Parsed<'_>) -> Vec<Segment> {
    let endian = elf.endian();
    let executable = elf.elf_program_headers().iter().filter(|program| {
        program.p_type(endian) == elf::PT_LOAD && program.p_flags(endian).contains(elf::PF_X)
    });
    let segments = executable.map(|program| Segment {
        offset: program.p_offset(endian),
        address: program.p_vaddr(endian),
        length: program.p_memsz(endian),
    });
    segments.take(MAX_PARTS).collect()
}

/// The begins and ends of the sections with code.
fn code(elf: &Parsed<'_>) -> Vec<(u64, u64)> {
    let sections = elf.sections().filter(|section| match section.flags() {
        SectionFlags::Elf { sh_flags, .. } => sh_flags.contains(elf::SHF_EXECINSTR),
        _ => false,
    });
    let places = sections.map(|section| {
        let begin = section.address();
        (begin, begin.saturating_add(section.size()))
    });
    places.take(MAX_PARTS).collect()
}

/// The contents of the section called `name`; empty if there is none.
pub fn section(file: &File, elf: &Parsed<'_>, name: &str) -> io::Result<Slice> {
    match elf.section_by_name(name) {
        Some(section) => contents(file, &section),
        None => Ok(no_section()),
    }
}

/// The decompressed contents of `section`. Bypasses the cache, which would keep them too.
fn contents<'a>(file: &File, section: &impl ObjectSection<'a>) -> io::Result<Slice> {
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
