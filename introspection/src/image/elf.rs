//! The parts of an ELF file that introspection needs (elf(5)).

use std::borrow::Cow;
use std::io::Read;

use flate2::read::ZlibDecoder;
use object::elf::{
    ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, ET_DYN, FileHeader64, PF_X, PT_LOAD, ProgramHeader64,
    SHF_EXECINSTR, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, SectionHeader64, SectionType, SymbolSection,
};
use object::read::elf::{
    CompressionHeader, FileHeader, NoteIterator, ProgramHeader, SectionHeader, SectionTable,
};
use object::{LittleEndian, SectionIndex, read};

use super::super::IntrospectionError;

type Header = FileHeader64<LittleEndian>;
type Program = ProgramHeader64<LittleEndian>;
type Section = SectionHeader64<LittleEndian>;

/// Maximum number of segments; a kernel has about five.
const MAX_SEGMENTS: usize = 64;
/// Maximum size of an unpacked section, in bytes. The debug information of a distribution's kernel has some 200 MB.
const MAX_SECTION: u64 = 1 << 30;
/// Maximum number of notes.
const MAX_NOTES: usize = 1024;

/// A loadable segment (`PT_LOAD`).
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The virtual address to which it was linked.
    pub address: u64,
    /// The part of it that is in the file.
    pub data: &'a [u8],
    /// Its length in memory, in bytes.
    pub memory_length: u64,
}

/// A kernel's ELF file.
#[derive(Debug)]
pub struct Vmlinux<'a> {
    file: &'a [u8],
    header: &'a Header,
    segments: Vec<Segment<'a>>,
}

impl<'a> Vmlinux<'a> {
    /// Reads the headers of a 64-bit little-endian `file`.
    ///
    /// # Errors
    /// The file isn't a 64-bit little-endian ELF file, or its headers point outside it.
    pub fn parse(file: &'a [u8]) -> Result<Self, IntrospectionError> {
        let header = Header::parse(file).map_err(damaged)?;
        header.endian().map_err(damaged)?;
        let mut segments = Vec::new();
        for program in header
            .program_headers(LittleEndian, file)
            .map_err(damaged)?
        {
            if program.p_type(LittleEndian) == PT_LOAD && segments.len() < MAX_SEGMENTS {
                let data = program.data(LittleEndian, file).map_err(|()| {
                    IntrospectionError::Elf("a segment lies outside the file".to_owned())
                })?;
                segments.push(Segment {
                    address: program.p_vaddr(LittleEndian),
                    data,
                    memory_length: program.p_memsz(LittleEndian),
                });
            }
        }
        Ok(Self {
            file,
            header,
            segments,
        })
    }

    /// Whether the file may run at any address.
    pub fn is_position_independent(&self) -> bool {
        self.header.e_type(LittleEndian) == ET_DYN
    }

    /// The parts of executable segments that are in the file, by the virtual address to which they were linked.
    pub fn executable(&self) -> impl Iterator<Item = (u64, &'a [u8])> {
        let file = self.file;
        let programs = self.header.program_headers(LittleEndian, file);
        let code = programs.unwrap_or_default().iter().filter(|program| {
            program.p_type(LittleEndian) == PT_LOAD && program.p_flags(LittleEndian).0 & PF_X.0 != 0
        });
        let part = move |program: &Program| {
            let data = program.data(LittleEndian, file).ok()?;
            Some((program.p_vaddr(LittleEndian), data))
        };
        code.filter_map(part).take(MAX_SEGMENTS)
    }

    /// The loadable segments.
    pub fn segments(&self) -> &[Segment<'a>] {
        &self.segments
    }

    /// The notes of `owner`, as from [`notes`].
    pub fn notes(&self, owner: &[u8]) -> Vec<(u32, &'a [u8])> {
        notes(self.file, owner)
    }

    /// The link-time address and the data of the section `name`. `None` if there is no such section, or it has no data
    /// in the file.
    pub fn section(&self, name: &[u8]) -> Option<(u64, &'a [u8])> {
        let (_, section) = self.sections()?.section_by_name(LittleEndian, name)?;
        if section.sh_type(LittleEndian) == SHT_NOBITS {
            return None;
        }
        let data = section.data(LittleEndian, self.file).ok()?;
        Some((section.sh_addr(LittleEndian), data))
    }

    /// The data of the section `name`, unpacked if it is packed (`SHF_COMPRESSED`, elf(5)). `None` if there is no such section, or it is damaged or
    /// unpacks to more than [`MAX_SECTION`] bytes.
    pub fn unpacked_section(&self, name: &[u8]) -> Option<Cow<'a, [u8]>> {
        let (_, section) = self.sections()?.section_by_name(LittleEndian, name)?;
        let data = section.data(LittleEndian, self.file).ok()?;
        let packing = section.compression(LittleEndian, self.file).ok()?;
        let Some((header, offset, size)) = packing else {
            return Some(Cow::Borrowed(data));
        };
        let (start, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
        let packed = self.file.get(start..start.checked_add(size)?)?;
        let mut unpacked = Vec::new();
        match header.ch_type(LittleEndian) {
            ELFCOMPRESS_ZLIB => ZlibDecoder::new(packed)
                .take(MAX_SECTION + 1)
                .read_to_end(&mut unpacked),
            ELFCOMPRESS_ZSTD => zstd::Decoder::new(packed)
                .ok()?
                .take(MAX_SECTION + 1)
                .read_to_end(&mut unpacked),
            _ => return None,
        }
        .ok()?;
        (unpacked.len() as u64 <= MAX_SECTION).then_some(Cow::Owned(unpacked))
    }

    /// The defined symbols of `.symtab`, which stripped kernels lack.
    pub fn symbols(&self) -> impl Iterator<Item = FileSymbol<'a>> {
        self.symbol_table(SHT_SYMTAB)
    }

    /// The defined symbols of `.dynsym`, by which a shared library is used.
    pub fn dynamic_symbols(&self) -> impl Iterator<Item = FileSymbol<'a>> {
        self.symbol_table(SHT_DYNSYM)
    }

    fn sections(&self) -> Option<SectionTable<'a, Header>> {
        self.header.sections(LittleEndian, self.file).ok()
    }

    /// The defined symbols of the table of this type.
    fn symbol_table(&self, kind: SectionType) -> impl Iterator<Item = FileSymbol<'a>> + use<'a> {
        use object::read::elf::Sym;
        let table = self.sections().and_then(|sections| {
            let table = sections.symbols(LittleEndian, self.file, kind).ok()?;
            Some((sections, table))
        });
        table.into_iter().flat_map(|(sections, table)| {
            let is_code = move |section: SymbolSection| {
                let index = section.index().map(|index| SectionIndex(index.into()));
                let section = index.and_then(|index| sections.section(index).ok());
                section.is_some_and(has_code)
            };
            let strings = table.strings();
            table.symbols().iter().filter_map(move |symbol| {
                // A symbol whose name can't be read is still there.
                let name = symbol.name(LittleEndian, strings).unwrap_or_default();
                let section = symbol.st_shndx(LittleEndian);
                let kept = section != object::elf::SHN_UNDEF
                    && symbol.st_type() != object::elf::STT_SECTION
                    && symbol.st_type() != object::elf::STT_FILE
                    // The assembler's own labels are within functions.
                    && !name.starts_with(b".L");
                kept.then(|| FileSymbol {
                    address: symbol.st_value(LittleEndian),
                    name,
                    kind: if is_code(section) {
                        SymbolKind::Function
                    } else if section == object::elf::SHN_ABS {
                        SymbolKind::Number
                    } else {
                        SymbolKind::Variable
                    },
                    size: symbol.st_size(LittleEndian),
                })
            })
        })
    }

    /// The ends of the sections with code, by address.
    pub fn code_ends(&self) -> Vec<u64> {
        let sections = self.sections();
        let code = sections.iter().flat_map(SectionTable::iter);
        let mut ends: Vec<u64> = code
            .filter(|section| has_code(section))
            .map(|section| {
                let length = section.sh_size(LittleEndian);
                section.sh_addr(LittleEndian).saturating_add(length)
            })
            .collect();
        ends.sort_unstable();
        ends
    }
}

/// A symbol of an ELF file.
#[derive(Clone, Copy, Debug)]
pub struct FileSymbol<'a> {
    /// Its address; of a number, the number.
    pub address: u64,
    /// Its name, any bytes; empty if it can't be read.
    pub name: &'a [u8],
    /// What it stands for.
    pub kind: SymbolKind,
    /// Its size in bytes; 0 if the file doesn't tell, as for most assembly code.
    pub size: u64,
}

/// What a symbol stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolKind {
    /// Code. As in nm(1) and kallsyms, every symbol in code is a function, including assembly labels, which have neither a type nor a size.
    Function,
    /// Data.
    Variable,
    /// An absolute number, which need not be an address.
    Number,
}

/// The notes of `owner` in the `PT_NOTE` segments of an ELF file: their types and descriptors. Empty if the file is
/// damaged, or isn't a 64-bit little-endian ELF file.
pub fn notes<'a>(elf: &'a [u8], owner: &[u8]) -> Vec<(u32, &'a [u8])> {
    let mut found = Vec::new();
    let header = Header::parse(elf).ok();
    let header = header.filter(|header| header.endian().is_ok());
    let programs = header.and_then(|header| header.program_headers(LittleEndian, elf).ok());
    let mut budget = MAX_NOTES;
    for program in programs.unwrap_or_default().iter().take(MAX_SEGMENTS) {
        if let Ok(Some(notes)) = program.notes(LittleEndian, elf) {
            add_notes(notes, owner, &mut budget, &mut found);
        }
    }
    found
}

/// The notes of `owner` in `section`, as from [`notes`], with an alignment of 4 bytes.
pub fn notes_in_section<'a>(section: &'a [u8], owner: &[u8]) -> Vec<(u32, &'a [u8])> {
    let mut found = Vec::new();
    if let Ok(notes) = NoteIterator::new(LittleEndian, 4, section) {
        add_notes(notes, owner, &mut { MAX_NOTES }, &mut found);
    }
    found
}

/// Adds the notes of `owner` among `notes`.
fn add_notes<'a>(
    mut notes: NoteIterator<'a, Header>,
    owner: &[u8],
    budget: &mut usize,
    found: &mut Vec<(u32, &'a [u8])>,
) {
    while let Some(note) = next_note(&mut notes, budget) {
        if note.name() == owner {
            found.push((note.n_type(LittleEndian).0, note.desc()));
        }
    }
}

fn next_note<'a>(
    notes: &mut NoteIterator<'a, Header>,
    budget: &mut usize,
) -> Option<read::elf::Note<'a, Header>> {
    *budget = budget.checked_sub(1)?;
    notes.next().ok().flatten()
}

fn has_code(section: &Section) -> bool {
    section.sh_flags(LittleEndian).contains(SHF_EXECINSTR)
}

fn damaged(error: read::Error) -> IntrospectionError {
    IntrospectionError::Elf(error.to_string())
}

#[cfg(test)]
mod tests {
    use kvmprof_introspection_fixtures::library::put;

    use super::*;

    /// An ELF file with one note segment.
    fn with_notes(notes: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        let length = notes.len() as u64;
        // Elf64_Ehdr from e_type on, then Elf64_Phdr: PT_NOTE.
        put(&mut file, &[(2, 2), (62, 2), (1, 4), (0, 8), (64, 8)]);
        put(&mut file, &[(0, 8), (0, 4), (64, 2), (56, 2), (1, 2)]);
        put(&mut file, &[(64, 2), (0, 2), (0, 2), (4, 4), (4, 4)]);
        put(&mut file, &[(120, 8), (0, 16), (length, 8), (length, 8)]);
        put(&mut file, &[(4, 8)]);
        file.extend_from_slice(notes);
        file
    }

    fn note(owner: &[u8], kind: u64, descriptor: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        let [owned, described] = [owner, descriptor].map(|part| part.len() as u64);
        put(&mut note, &[(owned, 4), (described, 4), (kind, 4)]);
        for part in [owner, descriptor] {
            note.extend_from_slice(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn finds_the_owners_notes() {
        let mut all = note(b"GNU\0", 3, b"build id");
        all.extend(note(b"kvmprof\0", 1, b"where"));
        all.extend(note(b"kvmprof\0", 9, b""));
        let file = with_notes(&all);
        let found = notes(&file, b"kvmprof");
        assert_eq!(found, [(1, b"where".as_slice()), (9, b"")]);
        assert_eq!(notes_in_section(&all, b"kvmprof"), found);
        assert_eq!(notes(&file, b"kvm"), []);
        assert_eq!(notes(b"no ELF file", b"kvmprof"), []);
    }

    #[test]
    fn damaged_notes_end_the_search() {
        let mut all = note(b"kvmprof\0", 1, b"where");
        all.extend(note(b"kvmprof\0", 2, b"cut"));
        let whole = with_notes(&all);
        for length in 0..whole.len() {
            assert!(notes(&whole[..length], b"kvmprof").len() <= 1);
        }
        let mut long = whole;
        long[120 + 4..120 + 8].fill(0xff);
        assert_eq!(notes(&long, b"kvmprof"), []);
    }

    #[test]
    fn reads_sections_and_symbols_of_a_file_that_has_them() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let vmlinux = Vmlinux::parse(&file).unwrap();
        let (begin, text) = vmlinux.section(b".text").unwrap();
        assert!(!text.is_empty());
        assert!(vmlinux.code_ends().contains(&(begin + text.len() as u64)));
        assert!(vmlinux.section(b".bss").is_none());
        assert!(vmlinux.section(b".no-such-section").is_none());
        let main = vmlinux.symbols().find(|symbol| symbol.name == b"main");
        let main = main.unwrap();
        assert!(main.address != 0 && main.size > 0);
        assert_eq!(main.kind, SymbolKind::Function);
    }
}
