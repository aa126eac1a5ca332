//! ELF files with symbols only (System V ABI, gABI 4.1).

use std::collections::BTreeMap;

use super::symbols::Function;

/// Bytes of the file's header, of a section's, and of a symbol.
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
/// Global function (`STB_GLOBAL`, `STT_FUNC`).
const GLOBAL_FUNCTION: u8 = 1 << 4 | 2;

/// A section: offset of its name, type, flags, offset, length, link, info, bytes of an entry.
type Section = (u32, u32, u64, usize, u64, u32, u32, u64);

/// A file with `functions` at their addresses. Its text covers all addresses, with equal file offsets, as it is mapped.
pub fn file(functions: &BTreeMap<u64, Function>) -> Vec<u8> {
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
    let at_sections = (at_section_names + SECTION_NAMES.len()).next_multiple_of(8);
    let sections: [Section; 5] = [
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
    ];
    let mut bytes = header(at_sections);
    bytes.extend(symbols);
    bytes.extend(names);
    bytes.extend(SECTION_NAMES);
    bytes.resize(at_sections, 0);
    for section in sections {
        push_section(&mut bytes, section);
    }
    bytes
}

fn header(at_sections: usize) -> Vec<u8> {
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
    for number in [64_u16, 56, 0, 64, 5, 4] {
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
