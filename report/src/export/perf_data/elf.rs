//! ELF files with symbols only (System V ABI, gABI 4.1).

use std::collections::BTreeMap;

use super::symbols::Function;

/// Bytes of the file's header, of a section's, and of a symbol.
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
/// Sections, that with a build id among them.
const SECTIONS: usize = 6;
const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0.note.gnu.build-id\0";
/// Global function (`STB_GLOBAL`, `STT_FUNC`).
const GLOBAL_FUNCTION: u8 = 1 << 4 | 2;

/// A section: offset of its name, type, flags, offset, length, link, info, bytes of an entry.
type Section = (u32, u32, u64, usize, u64, u32, u32, u64);

/// A note with a build id: bytes of the name, the kind, and the name (elf(5)).
const BUILD_ID_NAME: &[u8] = b"GNU\0";
const BUILD_ID_KIND: u32 = 3;

/// A file with `functions` at their addresses and with `build_id`, unless that is empty. Its text covers all addresses, at equal file offsets, as in the mapping.
pub fn file(functions: &BTreeMap<u64, Function>, build_id: &[u8]) -> Vec<u8> {
    let (mut symbols, mut names) = (vec![0; SYMBOL], vec![0]);
    for (begin, function) in functions {
        // A recording has less than 4 GiB of names; symbols beyond that would have no name.
        let name = u32::try_from(names.len()).unwrap_or_default();
        symbols.extend(name.to_le_bytes());
        symbols.extend([GLOBAL_FUNCTION, 0, 1, 0]);
        symbols.extend(begin.to_le_bytes());
        symbols.extend(function.length.to_le_bytes());
        names.extend(function.name.as_bytes());
        names.push(0);
    }
    let at_names = HEADER + symbols.len();
    let at_section_names = at_names + names.len();
    let at_note = (at_section_names + SECTION_NAMES.len()).next_multiple_of(8);
    let note = note(build_id);
    let at_sections = (at_note + note.len()).next_multiple_of(8);
    let sections: [Section; SECTIONS] = [
        (0, 0, 0, 0, 0, 0, 0, 0),
        // SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR
        (1, 8, 6, 0, u64::MAX, 0, 0, 0),
        // SHT_SYMTAB: its strings are in section 3, its first global symbol is 1.
        (7, 2, 0, HEADER, symbols.len() as u64, 3, 1, SYMBOL as u64),
        // SHT_STRTAB
        (15, 3, 0, at_names, names.len() as u64, 0, 0, 0),
        (
            23,
            3,
            0,
            at_section_names,
            SECTION_NAMES.len() as u64,
            0,
            0,
            0,
        ),
        // SHT_NOTE, SHF_ALLOC
        (33, 7, 2, at_note, note.len() as u64, 0, 0, 0),
    ];
    let count = if build_id.is_empty() {
        SECTIONS - 1
    } else {
        SECTIONS
    };
    let mut bytes = header(at_sections, count);
    bytes.extend(symbols);
    bytes.extend(names);
    bytes.extend(SECTION_NAMES);
    bytes.resize(at_note, 0);
    bytes.extend(note);
    bytes.resize(at_sections, 0);
    for section in sections.into_iter().take(count) {
        push_section(&mut bytes, section);
    }
    bytes
}

/// The note with `build_id`.
fn note(build_id: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for length in [BUILD_ID_NAME.len(), build_id.len()] {
        bytes.extend(u32::try_from(length).unwrap_or_default().to_le_bytes());
    }
    bytes.extend(BUILD_ID_KIND.to_le_bytes());
    bytes.extend(BUILD_ID_NAME);
    bytes.extend(build_id);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn header(at_sections: usize, sections: usize) -> Vec<u8> {
    // 64 bits, little-endian, version 1.
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    // ET_EXEC, EM_X86_64
    bytes.extend([2, 0, 62, 0]);
    bytes.extend(1_u32.to_le_bytes());
    // Entry point, program headers, section headers.
    for number in [0, 0, at_sections as u64] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(0_u32.to_le_bytes());
    // Bytes of this header and of a program header, the number of program headers; the same for sections; the index of
    // the section with their names.
    let sections = u16::try_from(sections).unwrap_or_default();
    for number in [64_u16, 56, 0, 64, sections, 4] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn push_section(bytes: &mut Vec<u8>, section: Section) {
    let (name, kind, flags, offset, length, link, info, entry) = section;
    let begin = bytes.len();
    for number in [name, kind] {
        bytes.extend(number.to_le_bytes());
    }
    for number in [flags, 0, offset as u64, length] {
        bytes.extend(number.to_le_bytes());
    }
    for number in [link, info] {
        bytes.extend(number.to_le_bytes());
    }
    for number in [1, entry] {
        bytes.extend(number.to_le_bytes());
    }
    debug_assert_eq!(bytes.len() - begin, SECTION);
}
