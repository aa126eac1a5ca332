//! Reads ELF files of which only parts may exist (elf(5)).

use object::Endianness;
use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_RELA, DT_RELASZ, DT_STRSZ, DT_STRTAB, DT_SYMTAB, DynamicTag, EM_386,
    EM_X86_64, PF_W, PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, R_X86_64_RELATIVE, SHF_EXECINSTR,
    SHT_DYNSYM, SHT_NOBITS, SectionType,
};
use object::read::StringTable;
use object::read::elf::{
    Dyn, FileHeader, GnuHashTable, ProgramHeader, Rela, SectionHeader, SectionTable,
};

use super::BinaryError;
use crate::file::Segment;

/// Maximum number of program headers that are read.
const MAX_SEGMENTS: usize = 256;
/// Maximum length of a build id, in bytes.
const MAX_BUILD_ID: usize = 64;
/// Maximum number of a table's relocations that are read.
const MAX_RELOCATIONS: usize = 1 << 20;

/// A file's header, of 32 or 64 bits.
pub trait Header: FileHeader<Endian = Endianness> {}
impl<T: FileHeader<Endian = Endianness>> Header for T {}

/// An ELF file.
#[derive(Debug)]
pub struct Elf<'a, H: Header> {
    pub endian: Endianness,
    pub header: &'a H,
    pub bytes: &'a [u8],
    programs: &'a [H::ProgramHeader],
    /// Empty if the file doesn't have them.
    sections: SectionTable<'a, H>,
}

/// A table of symbols and their names.
#[derive(Debug)]
pub struct SymbolTable<'a, H: Header> {
    pub symbols: &'a [H::Sym],
    pub names: StringTable<'a>,
}

impl<'a, H: Header> Elf<'a, H> {
    /// Reads the headers of the file whose contents are `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BinaryError> {
        let header = H::parse(bytes).map_err(|_| BinaryError::Damaged("its header"))?;
        let endian = header.endian().map_err(|_| BinaryError::NotElf)?;
        let machine = header.e_machine(endian);
        if endian != Endianness::Little || !(machine == EM_X86_64 || machine == EM_386) {
            return Err(BinaryError::NotElf);
        }
        let programs = header
            .program_headers(endian, bytes)
            .map_err(|_| BinaryError::Damaged("its program headers"))?;
        let elf = Self {
            endian,
            header,
            bytes,
            programs: programs.get(..MAX_SEGMENTS).unwrap_or(programs),
            sections: header.sections(endian, bytes).unwrap_or_default(),
        };
        if elf.executable_segments().is_empty() {
            return Err(BinaryError::NotExecutable);
        }
        Ok(elf)
    }

    /// The executable segments.
    pub fn executable_segments(&self) -> Vec<Segment> {
        let executable = self.programs.iter().filter(|program| {
            program.p_type(self.endian) == PT_LOAD && program.p_flags(self.endian).contains(PF_X)
        });
        executable.map(|program| self.segment(program)).collect()
    }

    fn segment(&self, program: &H::ProgramHeader) -> Segment {
        Segment {
            offset: program.p_offset(self.endian).into(),
            address: program.p_vaddr(self.endian).into(),
            length: program.p_filesz(self.endian).into(),
        }
    }

    /// The address and contents of the section called `name`.
    pub fn section(&self, name: &str) -> Option<(u64, &'a [u8])> {
        let (_, section) = self
            .sections
            .section_by_name(self.endian, name.as_bytes())?;
        if section.sh_type(self.endian) == SHT_NOBITS {
            return None;
        }
        let contents = section.data(self.endian, self.bytes).ok()?;
        Some((section.sh_addr(self.endian).into(), contents))
    }

    /// The table of symbols in a section of type `kind`.
    pub fn symbols(&self, kind: SectionType) -> Option<SymbolTable<'a, H>> {
        let table = self.sections.symbols(self.endian, self.bytes, kind).ok()?;
        (!table.is_empty()).then(|| SymbolTable {
            symbols: table.symbols(),
            names: table.strings(),
        })
    }

    /// The dynamic linker's symbols, with or without section headers.
    pub fn dynamic_symbols(&self) -> Option<SymbolTable<'a, H>> {
        self.symbols(SHT_DYNSYM).or_else(|| {
            let count = self.by_gnu_hashes().or_else(|| self.by_hashes())?;
            let symbols = self.bytes_at(self.dynamic(DT_SYMTAB)?)?;
            let (symbols, _) = object::pod::slice_from_bytes(symbols, count).ok()?;
            let names = self.bytes_at(self.dynamic(DT_STRTAB)?)?;
            let length = usize::try_from(self.dynamic(DT_STRSZ)?).ok()?;
            let names = names.get(..length)?;
            Some(SymbolTable {
                symbols,
                names: StringTable::new(names, 0, names.len() as u64),
            })
        })
    }

    /// The number of the dynamic linker's symbols, by its table of hashes: there is no other place that tells it.
    fn by_gnu_hashes(&self) -> Option<usize> {
        let hashes = self.bytes_at(self.dynamic(DT_GNU_HASH)?)?;
        let hashes = GnuHashTable::<H>::parse(self.endian, hashes).ok()?;
        usize::try_from(hashes.symbol_table_length(self.endian)?).ok()
    }

    /// The same by the older form of that table, which has an entry for each symbol: the number of its buckets, that of its entries.
    fn by_hashes(&self) -> Option<usize> {
        let hashes = self.bytes_at(self.dynamic(DT_HASH)?)?;
        let count: [u8; 4] = hashes.get(4..8)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(count)).ok()
    }

    /// The places of sections with code, without section headers those of segments: begins and ends.
    pub fn code(&self) -> Vec<(u64, u64)> {
        let sections = self.sections.iter();
        let sections =
            sections.filter(|section| section.sh_flags(self.endian).contains(SHF_EXECINSTR));
        let mut places: Vec<(u64, u64)> = sections
            .map(|section| {
                (
                    section.sh_addr(self.endian).into(),
                    section.sh_size(self.endian).into(),
                )
            })
            .collect();
        if places.is_empty() {
            let segments = self.executable_segments().into_iter();
            places.extend(segments.map(|segment| (segment.address, segment.length)));
        }
        let ends = places
            .iter()
            .map(|(begin, length)| (*begin, begin.saturating_add(*length)));
        ends.take(MAX_SEGMENTS).collect()
    }

    /// The value of the dynamic section's entry `tag`.
    pub fn dynamic(&self, tag: DynamicTag) -> Option<u64> {
        let programs = self.programs.iter();
        let mut dynamic = programs.filter(|program| program.p_type(self.endian) == PT_DYNAMIC);
        let entries = dynamic.next()?.dynamic(self.endian, self.bytes).ok()??;
        let entry = entries.iter().find(|entry| entry.tag(self.endian) == tag)?;
        Some(entry.val(self.endian))
    }

    /// The dynamic linker's relocations in the table that begins at the address in entry `begin` of the dynamic section, and takes as many
    /// bytes as entry `length` says; empty if there is none.
    pub fn relocations(&self, begin: DynamicTag, length: DynamicTag) -> &'a [H::Rela] {
        let found = (self.dynamic(begin).zip(self.dynamic(length))).and_then(|(begin, length)| {
            let bytes = self.bytes_at(begin)?;
            let bytes = bytes.get(..usize::try_from(length).ok()?)?;
            let count = (bytes.len() / size_of::<H::Rela>()).min(MAX_RELOCATIONS);
            let (relocations, _) = object::pod::slice_from_bytes(bytes, count).ok()?;
            Some(relocations)
        });
        found.unwrap_or_default()
    }

    /// The file's addresses that the dynamic linker writes into words, once it has moved them: the words' addresses, and what they say then. Those
    /// that the file has in the words themselves (`DT_RELR`) aren't among them.
    pub fn relative(&self) -> impl Iterator<Item = (u64, u64)> + use<'a, H> {
        let endian = self.endian;
        let relocations = self.relocations(DT_RELA, DT_RELASZ).iter();
        let relative = relocations
            .filter(move |relocation| relocation.r_type(endian, false) == R_X86_64_RELATIVE);
        relative.map(move |relocation| {
            let value: i64 = relocation.r_addend(endian).into();
            (relocation.r_offset(endian).into(), value.cast_unsigned())
        })
    }

    /// The address and the bytes in the file of each segment that the program writes to.
    pub fn writable_segments(&self) -> Vec<(u64, &'a [u8])> {
        let writable = self.programs.iter().filter(|program| {
            program.p_type(self.endian) == PT_LOAD && program.p_flags(self.endian).contains(PF_W)
        });
        let addresses = writable.map(|program| self.segment(program).address);
        addresses
            .filter_map(|address| Some((address, self.bytes_at(address)?)))
            .collect()
    }

    /// The file's bytes from virtual address `address` to the end of its segment.
    pub fn bytes_at(&self, address: u64) -> Option<&'a [u8]> {
        self.programs.iter().find_map(|program| {
            let segment = self.segment(program);
            let distance = address.checked_sub(segment.address)?;
            if program.p_type(self.endian) != PT_LOAD || distance >= segment.length {
                return None;
            }
            let begin = usize::try_from(segment.offset.checked_add(distance)?).ok()?;
            let length = usize::try_from(segment.length - distance).ok()?;
            let bytes = self.bytes.get(begin..)?;
            Some(bytes.get(..length).unwrap_or(bytes))
        })
    }

    /// The address and contents of `.eh_frame_hdr`, found by its program header.
    pub fn frame_header(&self) -> Option<(u64, &'a [u8])> {
        let mut programs = self.programs.iter();
        let program = programs.find(|program| program.p_type(self.endian) == PT_GNU_EH_FRAME)?;
        let address = program.p_vaddr(self.endian).into();
        let bytes = program.data(self.endian, self.bytes).ok()?;
        Some((address, bytes))
    }

    /// The build id in hexadecimal; empty if there is none.
    pub fn build_id(&self) -> String {
        let notes = self
            .programs
            .iter()
            .filter_map(|program| program.notes(self.endian, self.bytes).ok().flatten());
        let mut ids = notes.filter_map(|mut notes| {
            // Each note has at least a header, so that the file's length bounds their number.
            while let Ok(Some(note)) = notes.next() {
                let is_id = note.name() == b"GNU"
                    && note.n_type(self.endian) == object::elf::NT_GNU_BUILD_ID;
                if is_id && note.desc().len() <= MAX_BUILD_ID {
                    return Some(hex(note.desc()));
                }
            }
            None
        });
        ids.next().unwrap_or_default()
    }
}

/// `bytes` in hexadecimal, two digits each, as build ids are written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
