//! Tests with files that surely exist: this program itself, and programs that the compiler makes.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::*;

/// A program that calls libc, with and without a static function.
const SOURCE: &str = "\
#include <stdlib.h>
static __attribute__((noinline)) int hidden(int x) { return x * 3; }
int shown(int x) { return hidden(x) + 1; }
int main(int argc, char **argv) { (void)argv; return shown(atoi(argv[argc - 1])); }
";

fn compile(folder: &Path, options: &[&str]) -> Vec<u8> {
    let (source, program) = (folder.join("test.c"), folder.join("test"));
    std::fs::write(&source, SOURCE).unwrap();
    let common = "-O1 -fno-inline -Wl,-z,lazy -Wl,--build-id=0x00c0ffee";
    let mut compiler = Command::new("cc");
    compiler.args(common.split(' ')).args(options).arg("-o");
    run(compiler.args([&program, &source]));
    std::fs::read(program).unwrap()
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// The program in `folder` after objcopy has changed it like this.
fn changed(folder: &Path, options: &[&str]) -> ParsedBinary {
    let program = folder.join("test");
    run(Command::new("objcopy").args(options).arg(&program));
    parse(&std::fs::read(program).unwrap()).unwrap()
}

/// The program without section headers: e_shoff, e_shnum and e_shstrndx.
fn blind(mut bytes: Vec<u8>) -> ParsedBinary {
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    parse(&bytes).unwrap()
}

fn named<'a>(binary: &'a ParsedBinary, name: &str) -> Option<&'a BinaryFunction> {
    let mut functions = binary.functions.iter();
    functions.find(|function| function.name == name)
}

#[test]
fn a_program_has_its_functions() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = compile(folder.path(), &[]);
    let binary = parse(&bytes).unwrap();
    assert_eq!(binary.build_id, "00c0ffee");
    assert_eq!(binary.segments.len(), 1);
    for name in ["hidden", "shown", "main"] {
        let BinaryFunction {
            address, length, ..
        } = *named(&binary, name).unwrap();
        assert!(length > 0, "{name}");
        assert_eq!(function(&bytes, name), Some(address..address + length));
    }
    assert_eq!(function(&bytes, "absent"), None);
    let stub = ["strtol@plt", "atoi@plt"].map(|name| named(&binary, name).is_some());
    assert!(stub.contains(&true), "{:?}", binary.functions);
    let addresses = binary.functions.iter().map(|function| function.address);
    assert!(addresses.is_sorted_by(|left, right| left < right));
}

#[test]
fn a_stripped_program_has_starts_without_names() {
    let folder = tempfile::tempdir().unwrap();
    let whole = parse(&compile(folder.path(), &["-rdynamic"])).unwrap();
    let stripped = parse(&compile(folder.path(), &["-rdynamic", "-s"])).unwrap();
    let hidden = named(&whole, "hidden").unwrap();
    assert_eq!(named(&stripped, "hidden"), None);
    assert_eq!(named(&stripped, "shown"), named(&whole, "shown"));
    let nameless = BinaryFunction {
        name: String::new(),
        ..hidden.clone()
    };
    assert!(stripped.functions.contains(&nameless));
}

#[test]
fn builds_without_a_build_id_differ_by_their_code() {
    let folder = tempfile::tempdir().unwrap();
    // With code and headers in one segment, as Go and older linkers have it.
    for layout in ["-Wl,-z,separate-code", "-Wl,-z,noseparate-code"] {
        let identity = |options: &[&str]| {
            let options = [&["-Wl,--build-id=none", layout], options].concat();
            let bytes = compile(folder.path(), &options);
            let identity = Identity::of(&bytes).unwrap();
            let parsed = parse(&bytes).unwrap();
            assert_eq!(identity.code_crc32, parsed.code_crc32);
            assert_eq!(identity.segments, parsed.segments);
            identity
        };
        let whole = identity(&[]);
        assert_eq!(whole.build_id, "");
        assert_eq!(whole.check(&identity(&["-s"])), Ok(()), "{layout}");
        let other = identity(&["-O0"]);
        assert_eq!(whole.check(&other), Err(Mismatch::Code), "{layout}");
    }
    let bytes = compile(folder.path(), &[]);
    assert_eq!(Identity::of(&bytes[..0x800]).unwrap().code_crc32, None);
}

#[test]
fn a_file_without_section_headers_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for style in ["gnu", "sysv"] {
        let style = format!("-Wl,--hash-style={style}");
        let bytes = compile(folder.path(), &["-rdynamic", "-s", &style]);
        let whole = parse(&bytes).unwrap();
        let blind = blind(bytes);
        assert_eq!(blind.build_id, whole.build_id);
        let shown = named(&whole, "shown").unwrap();
        assert_eq!(named(&blind, "shown"), Some(shown), "{style}");
        // Not in the dynamic linker's table, and so without a name.
        assert_eq!(named(&blind, "hidden"), None);
        let nameless = |binary: &ParsedBinary| {
            let names = binary.functions.iter().map(|function| &function.name);
            names.filter(|name| name.is_empty()).count()
        };
        assert!(nameless(&blind) >= nameless(&whole), "{style}");
    }
}

/// Assembly code in a section of its own: without and with sizes, and with data in between.
const ASSEMBLY: &str = "\
.section .mine, \"ax\"
.globl open_ended
open_ended: nop
    ret
local_routine: nop
.Lagain: ret
    .type table, @object
table: .quad 1
    .globl sized
    .type sized, @function
sized: nop
within: nop
    .globl entry
entry: ret
    .size sized, . - sized
    nop
    .type \"operator gr\u{f6}\u{df}e\", @function
\"operator gr\u{f6}\u{df}e\": ret
    .size \"operator gr\u{f6}\u{df}e\", 1
    .globl last
last: nop
    ret
";

/// An address's function, as a reader of recordings finds it.
fn at(binary: &ParsedBinary, address: u64) -> Option<&str> {
    let mut functions = binary.functions.iter().rev();
    let is_in =
        |function: &&BinaryFunction| address.wrapping_sub(function.address) < function.length;
    functions.find(is_in).map(|function| function.name.as_str())
}

#[test]
fn code_without_a_symbol_of_its_own_is_in_no_function() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = folder.path().join("assembly.s");
    std::fs::write(&assembly, ASSEMBLY).unwrap();
    let bytes = compile(folder.path(), &[assembly.to_str().unwrap()]);
    let binary = parse(&bytes).unwrap();
    assert!(binary.functions.iter().all(|function| function.length > 0));
    assert_eq!(binary.unnamed, 0);
    let begin = named(&binary, "open_ended").unwrap().address;
    let names: Vec<_> = (0..20).map(|byte| at(&binary, begin + byte)).collect();
    let expected = [
        (Some("open_ended"), 2),
        (Some("local_routine"), 2),
        // The table.
        (None, 8),
        (Some("sized"), 2),
        (Some("entry"), 1),
        (None, 1),
        (Some("operator gr\u{f6}\u{df}e"), 1),
        (Some("last"), 2),
        (None, 1),
    ];
    let expected = expected.map(|(name, bytes)| vec![name; bytes]);
    assert_eq!(names, expected.concat());
    // Without its symbol, nothing else is left.
    let symbols = ["sized", "within", "entry"].map(|name| format!("--strip-symbol={name}"));
    let stripped = changed(folder.path(), &symbols.each_ref().map(String::as_str));
    assert!((0..4).all(|byte| at(&stripped, begin + 12 + byte).is_none()));
    assert_eq!(at(&stripped, begin), Some("open_ended"));
}

#[test]
fn symbols_within_the_file_are_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let whole = compile(folder.path(), &[]);
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    writer.write_all(&whole).unwrap();
    let packed = folder.path().join("packed");
    std::fs::write(&packed, writer.finish().unwrap()).unwrap();
    compile(folder.path(), &["-s"]);
    let section = format!("--add-section=.gnu_debugdata={}", packed.display());
    let stripped = changed(folder.path(), &[&section]);
    let whole = parse(&whole).unwrap();
    assert_eq!(named(&stripped, "hidden"), named(&whole, "hidden"));
}

/// A function without an equal one: the compiler keeps its name.
#[inline(never)]
fn marker_in_this_program(number: u64) -> u64 {
    std::hint::black_box(number) ^ 0x6b76_6d70_726f_6600
}

#[test]
fn this_program_is_read() {
    assert_ne!(marker_in_this_program(1), 1);
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let binary = parse(&bytes).unwrap();
    let mut functions = binary.functions.iter();
    assert!(functions.any(|function| function.name.contains("marker_in_this_program")));
}

#[test]
fn other_files_are_refused() {
    assert_eq!(parse(b""), Err(BinaryError::NotElf));
    assert_eq!(parse(b"#!/bin/sh\n"), Err(BinaryError::NotElf));
    let cut = parse(b"\x7fELF\x02\x01\x01");
    assert_eq!(cut, Err(BinaryError::Damaged("its header")));
}
