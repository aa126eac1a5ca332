//! Tests with tables of all versions.

use std::path::Path;
use std::process::Command;

use super::*;

const TEXT: u64 = 0x40_1000;
/// Frames of 0, 8 and 24 bytes: until byte 4, byte 10 and byte 32.
const SIZES: [u8; 7] = [2, 4, 16, 6, 32, 22, 0];
/// Offsets of the parts, which are those of later versions' headers, too.
const NAMES: usize = 0x60;
const CHANGES: usize = 0x80;
const INDEX: usize = 0x90;
const ENTRY: usize = 0x100;

/// A table with the functions `main.work`, of 32 bytes, and `runtime.goexit`, of 16, in the form that begins with `magic`.
fn table(magic: u32) -> Vec<u8> {
    let mut table = vec![0; 0x200];
    let mut put = |place: usize, bytes: &[u8]| table[place..][..bytes.len()].copy_from_slice(bytes);
    put(0, &magic.to_le_bytes());
    put(6, &[1, 8]);
    put(8, &2_u64.to_le_bytes());
    let words: &[(usize, usize)] = match magic {
        0xffff_fffb => &[],
        0xffff_fffa => &[(2, NAMES), (5, CHANGES), (6, INDEX)],
        _ => &[(2, 0x40_1000), (3, NAMES), (6, CHANGES), (7, INDEX)],
    };
    for (index, word) in words {
        put(8 + 8 * index, &(*word as u64).to_le_bytes());
    }
    put(NAMES + 1, b"main.work\0runtime.goexit\0");
    put(CHANGES, &[0]);
    put(CHANGES + 1, &SIZES);
    // Earlier versions have addresses and offsets from the table's start in place of offsets.
    let is_early = !(0xffff_fff0..=0xffff_fff1).contains(&magic);
    let is_first = magic == 0xffff_fffb;
    let base = if is_first { 0 } else { INDEX };
    let index = if is_first { 16 } else { INDEX };
    let entries = [ENTRY - base, ENTRY + 0x40 - base];
    let numbers = [0, entries[0], 32, entries[1], 48];
    for (place, mut number) in numbers.into_iter().enumerate() {
        if is_early {
            if place % 2 == 0 {
                number += 0x40_1000;
            }
            put(index + 8 * place, &(number as u64).to_le_bytes());
        } else {
            let number = u32::try_from(number).unwrap();
            put(index + 4 * place, &number.to_le_bytes());
        }
    }
    let part = |offset: usize, base: usize| {
        let place = if is_first { offset + base } else { offset };
        u32::try_from(place).unwrap().to_le_bytes()
    };
    let (name, sizes) = if is_early { (8, 20) } else { (4, 16) };
    for (entry, named) in [(ENTRY, 1), (ENTRY + 0x40, 11)] {
        put(entry + name, &part(named, NAMES));
        put(entry + sizes, &part(1, CHANGES));
    }
    table
}

#[test]
fn all_versions_tell_names_and_frames() {
    for magic in [0xffff_fffb, 0xffff_fffa, 0xffff_fff0, 0xffff_fff1] {
        let table = table(magic);
        let functions: Vec<_> = GoTable::parse(&table).unwrap().functions().collect();
        let [work, exit] = functions.as_slice() else {
            panic!("{magic:x}: {functions:?}");
        };
        for (function, bounds, name, caller) in [
            (work, (0, 32), &b"main.work"[..], GoCaller::AboveFrame),
            (exit, (32, 48), b"runtime.goexit", GoCaller::Outermost),
        ] {
            assert_eq!((function.begin - TEXT, function.end - TEXT), bounds);
            assert_eq!(
                (function.name, function.caller),
                (name, caller),
                "{magic:x}"
            );
        }
        let size = |offset| frame_size(work.sizes, work.begin, work.begin + offset);
        let sizes = [0, 3, 4, 9, 10, 31].map(size);
        assert_eq!(sizes, [0, 0, 8, 8, 24, 24].map(Some));
        assert_eq!(size(32), None);
        assert_eq!(length_of_sizes(work.sizes), Some(SIZES.len()));
    }
}

#[test]
fn flags_say_where_the_caller_is() {
    for (magic, place) in [(0xffff_fffa, 41), (0xffff_fff0, 37), (0xffff_fff1, 41)] {
        for (flags, caller) in [
            (IS_OUTERMOST | WRITES_STACK_POINTER, GoCaller::Outermost),
            (WRITES_STACK_POINTER, GoCaller::Elsewhere),
            (4, GoCaller::AboveFrame),
        ] {
            let mut table = table(magic);
            table[ENTRY + place] = flags;
            let first = GoTable::parse(&table).unwrap().functions().next();
            assert_eq!(first.unwrap().caller, caller, "{magic:x} {flags}");
        }
    }
}

/// What the assembler makes of `program.s` with these symbols.
fn program(symbols: &[&str], options: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/elf/go/program.s");
    let symbols = symbols
        .iter()
        .map(|symbol| format!("-Wa,--defsym,{symbol}"));
    let mut compiler = Command::new("cc");
    compiler.args(["-nostdlib", "-s"]);
    compiler.args(options).args(symbols);
    let status = compiler.arg(&source).arg("-o").arg(&program).status();
    assert!(status.unwrap().success());
    std::fs::read(program).unwrap()
}

const FIXED: &[&str] = &["-static"];
const MOVABLE: &[&str] = &["-pie"];

/// `file` without what the dynamic linker writes, as Go's own linker leaves it.
fn without_relocated(mut file: Vec<u8>) -> Vec<u8> {
    let elf = Elf::<FileHeader64<Endianness>>::parse(&file).unwrap();
    let begin = file.as_ptr().addr();
    let places = elf
        .relative()
        .map(|(address, _)| elf.bytes_at(address).unwrap().as_ptr().addr() - begin);
    let places: Vec<usize> = places.collect();
    for place in places {
        file[place..place + 8].fill(0);
    }
    file
}

/// The functions at the byte of this number of the code: their names, files and lines, as `main.work main.go:10`.
fn at(file: &[u8], distance: u64) -> Vec<String> {
    let functions = GoTable::find(file).unwrap().functions();
    let code = functions.map(|function| function.begin).min().unwrap();
    let lines = GoLines::read(file).unwrap();
    let frames = lines.frames(code.wrapping_add(distance)).into_iter();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let shown = frames.map(|frame| match frame.source {
        Some((file, line)) => format!("{} {}:{line}", text(frame.name), text(file)),
        None => text(frame.name),
    });
    shown.collect()
}

const WORK: &str = "main.work /src/main.go:";
const ADD: &str = "main.add /src/other.go:20";

/// Whether the file or the dynamic linker has the addresses, and whether the table says where the code is.
#[test]
fn all_forms_tell_lines_and_inlined_functions() {
    let work = |line: u32| format!("{WORK}{line}");
    let twice = "main.twice /src/other.go:30".to_owned();
    for version in ["VERSION=118", "VERSION=120"] {
        for (symbols, options) in [
            (&["TELLS=1"][..], FIXED),
            (&["TELLS=0"], FIXED),
            (&["TELLS=1", "MOVES=1"], MOVABLE),
            (&["TELLS=0", "MOVES=1"], MOVABLE),
            (&["JOINED=1"], MOVABLE),
        ] {
            let symbols = [&[version], symbols].concat();
            let file = without_relocated(program(&symbols, options));
            for (distance, expected) in [
                (0, vec![work(10)]),
                (7, vec![work(11)]),
                (8, vec![ADD.to_owned(), work(11)]),
                (15, vec![twice.clone(), ADD.to_owned(), work(11)]),
                (16, vec![work(12)]),
                (32, vec!["runtime.goexit".to_owned()]),
                (48, vec![]),
                (u64::MAX, vec![]),
            ] {
                assert_eq!(at(&file, distance), expected, "{symbols:?} {distance}");
            }
            let functions = super::super::parse(&file).unwrap().functions;
            let mut names = functions.iter().map(|function| function.name.as_str());
            assert!(names.any(|name| name == "main.work"), "{functions:?}");
        }
    }
}

/// The program says something else of the table than the table does.
#[test]
fn what_a_program_says_of_its_parts_is_used_only_if_it_is_proven() {
    let file = program(&["WRONG=1"], FIXED);
    assert_eq!(at(&file, 4), [format!("{WORK}11")]);
    // Without the function, the line would be one of another.
    assert_eq!(at(&file, 8), [""; 0]);
    for (symbols, options) in [
        (["WRONG=1", "TELLS=0"], FIXED),
        (["WRONG=1", "MOVES=1"], MOVABLE),
        (["WRONG=1", "JOINED=1"], MOVABLE),
    ] {
        let file = without_relocated(program(&symbols, options));
        assert!(GoTable::find(&file).is_none(), "{symbols:?}");
        assert!(GoLines::read(&file).is_none(), "{symbols:?}");
    }
}

#[test]
fn damaged_tables_give_what_is_right() {
    let whole = table(0xffff_fff1);
    for length in 0..whole.len() {
        if let Some(table) = GoTable::parse(&whole[..length]) {
            assert!(table.functions().count() <= 2);
        }
    }
    let mut many = whole.clone();
    many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(GoTable::parse(&many).is_none());
    // Changes without an end.
    assert_eq!(length_of_sizes(&[2; 1000]), None);
    assert_eq!(frame_size(&[2; 4000], 0, u64::MAX), None);
    assert_eq!(frame_size(&[0x80; 10], 0, 0), None);
}
