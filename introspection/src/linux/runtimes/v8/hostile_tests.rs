//! Memory of processes that look like V8, and memory that changes while it is read.

use super::super::ProcessRuntime;
use super::super::test_memory::Words;
use super::*;
use kvmprof_recording::LanguageFrame;

/// The frame pointer of a frame, and what it has.
const BP: u64 = 0x7000_0100;
const HEAP: u64 = 0x10_0000_0000;
const CONTEXT: u64 = HEAP + 0x8000;
const CLOSURE: u64 = HEAP;
const SHARED_INFO: u64 = HEAP + 0x1000;
const SCOPE: u64 = HEAP + 0x2000;
const SCRIPT: u64 = HEAP + 0x3000;
const NAME: u64 = HEAP + 0x4000;
const FILE: u64 = HEAP + 0x5000;
const SOURCE: u64 = HEAP + 0x6000;
const UNDEFINED: u64 = HEAP + 0x7000;
/// Maps, 256 bytes for each type of objects.
const MAPS: u64 = 0x20_0000_0000;
/// The types of a string with characters of one byte, and of one that stands for another one.
const ONE_BYTE: u16 = 40;
const THIN: u16 = 45;
/// What `UNDEFINED` is.
const ODDBALL: u16 = 131;
/// A function with a name that its code doesn't use, and an outer scope.
const FLAGS: u64 = 0x41_71e2;
/// Maximum number of reads for one frame.
const MAX_READS: usize = 10;

fn put_object(memory: &mut Words, at: u64, number: u16) {
    let map = MAPS + 0x100 * u64::from(number);
    memory.put(at, map + TAG);
    memory.put(map + 8, u64::from(number) << 32);
}

fn put_text(memory: &mut Words, at: u64, text: &str) {
    put_object(memory, at, ONE_BYTE);
    memory.put(at + 8, (text.len() as u64) << 32);
    for (place, part) in (at + 16..).step_by(8).zip(text.as_bytes().chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        memory.put(place, u64::from_le_bytes(bytes));
    }
}

/// The memory of a process with a frame of the function `name`, which begins in the third line of a file.
fn memory_of(name: &str) -> Words {
    let mut memory = Words::default();
    memory.put(BP - 16, CLOSURE + TAG);
    memory.put(BP - 8, CONTEXT + TAG);
    put_object(&mut memory, CLOSURE, 2066);
    memory.put(CLOSURE + 24, SHARED_INFO + TAG);
    put_object(&mut memory, SHARED_INFO, NODE_20.shared);
    memory.put(SHARED_INFO + 16, SCOPE + TAG);
    memory.put(SHARED_INFO + 32, SCRIPT + TAG);
    memory.put(SHARED_INFO + 40, 0x0007_0002_0001);
    memory.put(SHARED_INFO + 48, 3 << 32 | 0x1140);
    put_object(&mut memory, SCOPE, NODE_20.scope);
    let words = [FLAGS << 32, 1 << 32, 0, NAME + TAG, u64::MAX << 32];
    let places = [UNDEFINED + TAG, 9 << 32, 20 << 32];
    for (place, word) in (SCOPE + 8..)
        .step_by(8)
        .zip(words.into_iter().chain(places))
    {
        memory.put(place, word);
    }
    put_object(&mut memory, SCRIPT, NODE_20.script);
    memory.put(SCRIPT + 8, SOURCE + TAG);
    memory.put(SCRIPT + 16, FILE + TAG);
    memory.put(SCRIPT + 24, 0);
    memory.put(SCRIPT + 64, 81 << 32);
    put_object(&mut memory, UNDEFINED, ODDBALL);
    put_text(&mut memory, NAME, name);
    put_text(&mut memory, FILE, "/srv/loom.js");
    put_text(&mut memory, SOURCE, "a\r\nb\nf = (x) => {}\n");
    memory
}

fn process() -> ProcessRuntime {
    ProcessRuntime::new(of_node(20).unwrap(), 0, 0x1000, 7)
}

/// What the frame at `bp` executes, of code with the stack pointer `sp`.
fn executed_at(process: &ProcessRuntime, [sp, bp]: [u64; 2], memory: &mut Words) -> Executed {
    memory.reads = 0;
    let is_generated = true;
    let executed = process.executed(
        BareFrame {
            sp,
            bp,
            is_generated,
            ..BareFrame::default()
        },
        memory,
    );
    assert!(memory.reads <= MAX_READS, "{}", memory.reads);
    executed
}

fn executed(process: &ProcessRuntime, memory: &mut Words) -> Executed {
    executed_at(process, [BP - 64, BP], memory)
}

/// The functions of the frame of `memory`: their names, files and lines.
fn named(memory: &mut Words) -> Vec<(String, String, u32)> {
    let process = process();
    executed(&process, memory);
    let functions = process.read_new(memory).into_iter();
    functions.map(|it| (it.name, it.file, it.line)).collect()
}

fn name_of(memory: &mut Words) -> Option<String> {
    named(memory).pop().map(|(name, ..)| name)
}

#[test]
fn frames_show_their_functions() {
    let (process, mut memory) = (process(), memory_of("weave"));
    let Executed::Function(word) = executed(&process, &mut memory) else {
        panic!("it is a frame of a function");
    };
    let frame = LanguageFrame::from_word(word).unwrap();
    assert_eq!(frame.language_name(), "javascript");
    let functions = process.read_new(&mut memory);
    let [function] = &functions[..] else {
        panic!("one function has a frame");
    };
    assert_eq!(function.function, frame.function);
    let expected = ("weave".to_owned(), "/srv/loom.js".to_owned(), 3);
    assert_eq!(named(&mut memory), [expected]);
    assert_eq!(process.read_new(&mut memory), [], "it has been read");
    // What is below the stack pointer isn't the function's yet.
    for sp in [BP, BP - 8] {
        let frame = executed_at(&process, [sp, BP], &mut memory);
        assert_eq!(frame, Executed::Unknown);
    }
    for bp in [0, 8, 15, BP + 4, 0x1234_5000, u64::MAX - 7] {
        let frame = executed_at(&process, [0, bp], &mut memory);
        assert_eq!(frame, Executed::Unknown, "{bp:#x}");
    }
}

#[test]
fn frames_of_other_kinds_have_their_numbers() {
    let (process, mut memory) = (process(), memory_of("weave"));
    let mut kind = |number: u64, is_generated| {
        memory.put(BP - 8, number << 1);
        let (sp, bp) = (BP - 64, BP);
        process.executed(
            BareFrame {
                sp,
                bp,
                is_generated,
                ..BareFrame::default()
            },
            &mut memory,
        )
    };
    assert_eq!(kind(1, true), Executed::Runtime);
    assert_eq!(kind(MAX_KIND - 1, true), Executed::Runtime);
    for number in [0, MAX_KIND, 1 << 40, u64::MAX >> 1] {
        assert_eq!(kind(number, false), Executed::Unknown, "{number:#x}");
    }
    // In code of others, the frame pointer may be that of the code which has called C++.
    for number in NODE_20.exits {
        assert_eq!(kind(number, false), Executed::Runtime);
        assert_eq!(kind(number, true), Executed::Unknown);
    }
}

#[test]
fn wild_references_give_no_function() {
    let places = [BP - 16, CLOSURE, CLOSURE + 24, SHARED_INFO];
    let wild = [
        0,
        1,
        0x1234_5001,
        0x7fff_ffff_ffff_fff9,
        0xffff_8000_0000_0001,
        u64::MAX,
        NAME + TAG,
        SHARED_INFO,
    ];
    for place in places {
        for word in wild {
            let mut memory = memory_of("weave");
            memory.put(place, word);
            let found = executed(&process(), &mut memory);
            // The type of a closure isn't looked at.
            let is_map = place == CLOSURE && word & TAG != 0;
            let is_function = matches!(found, Executed::Function(_));
            assert_eq!(is_function, is_map, "{place:#x}: {word:#x}");
        }
    }
    // Those of a name: it is missing, or what is there.
    for place in [SHARED_INFO + 16, SCOPE, NAME, SCOPE + 32] {
        for word in wild {
            let mut memory = memory_of("weave");
            memory.put(place, word);
            let name = name_of(&mut memory);
            let is_there = [None, Some("(anonymous)"), Some("weave")].contains(&name.as_deref());
            assert!(is_there, "{place:#x}: {word:#x}: {name:?}");
        }
    }
}

#[test]
fn objects_that_are_being_moved_are_read_from_their_new_place() {
    let mut memory = memory_of("weave");
    for (at, length) in [(CLOSURE, 32), (SHARED_INFO, 56)] {
        let new = at + 0x100_0000;
        for offset in (0..length).step_by(8) {
            let word = memory.word(at + offset).unwrap();
            memory.put(new + offset, word);
        }
        memory.put(at, new);
    }
    assert_eq!(name_of(&mut memory).as_deref(), Some("weave"));
    // One that has moved twice isn't followed.
    memory.put(CLOSURE + 0x100_0000, CLOSURE);
    assert_eq!(executed(&process(), &mut memory), Executed::Unread);
}

#[test]
fn memory_that_is_used_again_gives_no_name() {
    let changes = [
        (SHARED_INFO + 16, NAME + TAG),
        (SHARED_INFO + 40, 0x0009_0002_0001),
        (SHARED_INFO + 48, 4 << 32 | 0x1140),
        (SCRIPT + 8, NAME + TAG),
        (SCRIPT + 16, NAME + TAG),
        (SCRIPT + 64, 82 << 32),
    ];
    for (place, word) in changes {
        let (process, mut memory) = (process(), memory_of("weave"));
        let before = executed(&process, &mut memory);
        memory.put(place, word);
        assert_eq!(process.read_new(&mut memory), [], "the tick's one is gone");
        assert_ne!(before, executed(&process, &mut memory));
        assert_eq!(process.read_new(&mut memory).len(), 1, "{place:#x}");
    }
    // What changes while a function exists is no part of it.
    let (process, mut memory) = (process(), memory_of("weave"));
    executed(&process, &mut memory);
    memory.put(SHARED_INFO + 48, 3 << 32 | 0x7777);
    assert_eq!(process.read_new(&mut memory).len(), 1);
}

/// Memory that is other memory from some read on.
struct Changing {
    now: Words,
    later: Words,
    reads: usize,
}

impl ProcessMemory for Changing {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Option<()> {
        if self.reads == 0 {
            self.now = self.later.clone();
        }
        self.reads = self.reads.wrapping_sub(1);
        self.now.read(address, buffer)
    }
}

/// The collector moves one of the strings, and uses its memory again, while the name is being read.
#[test]
fn strings_that_move_meanwhile_give_no_other_name() {
    for (reference, at) in [
        (SCOPE + 32, NAME),
        (SCRIPT + 16, FILE),
        (SCRIPT + 8, SOURCE),
    ] {
        let mut later = memory_of("weave");
        let moved = at + 0x10_0000;
        for offset in (0..64).step_by(8) {
            let word = later.word(at + offset).unwrap();
            later.put(moved + offset, word);
        }
        later.put(reference, moved + TAG);
        put_text(&mut later, at, "other\nother\nother\nother");
        let mut found = 0;
        for reads in 0..80 {
            let process = process();
            let mut memory = memory_of("weave");
            executed(&process, &mut memory);
            let functions = process.read_new(&mut Changing {
                now: memory,
                later: later.clone(),
                reads,
            });
            for function in functions {
                assert_eq!((&*function.name, function.line), ("weave", 3), "{reads}");
                assert_eq!(function.file, "/srv/loom.js");
                found += 1;
            }
        }
        assert!((1..80).contains(&found), "{found}");
    }
}

#[test]
fn strings_have_all_their_forms() {
    let named = |change: &dyn Fn(&mut Words)| {
        let mut memory = memory_of("weave");
        change(&mut memory);
        name_of(&mut memory)
    };
    let string = |memory: &mut Words, number: u16, length: u64, words: [u64; 2]| {
        put_object(memory, NAME, number);
        memory.put(NAME + 8, length << 32);
        memory.put(NAME + 16, words[0]);
        memory.put(NAME + 24, words[1]);
        put_text(memory, NAME + 0x200, "Dyer");
        put_text(memory, NAME + 0x300, ".dye");
    };
    let (first, second) = (NAME + 0x200 + TAG, NAME + 0x300 + TAG);
    let form = |number, length, words| named(&|memory| string(memory, number, length, words));
    assert_eq!(form(41, 8, [first, second]).as_deref(), Some("Dyer.dye"));
    assert_eq!(form(THIN, 4, [first, 0]).as_deref(), Some("Dyer"));
    assert_eq!(form(43, 3, [first, 1 << 32]).as_deref(), Some("yer"));
    let external = form(42, 4, [0, NAME + 0x310]);
    assert_eq!(external.as_deref(), Some(".dye"));
    // Two bytes a character: `De` and `yr`, as numbers.
    let wide = form(34, 1, [0, NAME + 0x210]);
    assert_eq!(wide.as_deref(), Some("\u{7944}"));
    // Parts that leave their parent, one without the address of its characters, and those that lead to themselves.
    for (number, length, words) in [
        (43, 4, [first, 1 << 32]),
        (43, 3, [first, u64::MAX << 32]),
        (43, 3, [first, second]),
        (42 | 16, 4, [0, NAME + 0x310]),
        (THIN, 4, [NAME + TAG, 0]),
        (41, 8, [NAME + TAG, NAME + TAG]),
        (41, 8, [first, 0x1234_5001]),
        (46, 4, [first, second]),
        (128, 4, [first, second]),
    ] {
        assert_eq!(form(number, length, words), None, "{number}: {words:x?}");
    }
}

#[test]
fn enormous_names_are_cut_off_or_refused() {
    let endless = |memory: &mut Words, at: u64, length: u64| memory.put(at + 8, length << 32);
    let mut memory = memory_of("weave");
    // What follows it in memory, up to the maximum.
    put_text(&mut memory, NAME, &"x".repeat(3000));
    endless(&mut memory, NAME, u64::from(u32::MAX));
    assert_eq!(name_of(&mut memory).map(|name| name.len()), Some(1024));
    let mut memory = memory_of("");
    assert_eq!(name_of(&mut memory).as_deref(), Some("(anonymous)"));
    put_text(&mut memory, UNDEFINED, "loom.weave");
    assert_eq!(name_of(&mut memory).as_deref(), Some("loom.weave"));
    // A script and a number of local variables without an end.
    let mut memory = memory_of("weave");
    endless(&mut memory, SOURCE, u64::from(u32::MAX));
    memory.put(SCOPE + 56, 0x7fff_0000 << 32);
    memory.put(SCOPE + 64, 0x7fff_ffff << 32);
    let expected = ("weave".to_owned(), "/srv/loom.js".to_owned(), 0);
    assert_eq!(named(&mut memory), [expected]);
    for locals in [u64::MAX << 32, 0x7fff_ffff << 32, 5000 << 32] {
        memory.put(SCOPE + 24, locals);
        assert_eq!(named(&mut memory), [], "{locals:#x}");
    }
}

#[test]
fn lines_end_as_those_of_the_language() {
    let line = |source: &str, begin: u64| {
        let mut memory = memory_of("weave");
        put_text(&mut memory, SOURCE, source);
        memory.put(SCOPE + 56, begin << 32);
        memory.put(SCOPE + 64, begin << 32);
        named(&mut memory)[0].2
    };
    assert_eq!(line("f", 0), 1);
    assert_eq!(line("\n\r\n\r\r\n\n", 7), 6);
    assert_eq!(line("a\n", 2), 2);
    // Across the pieces in which a script is read.
    let long = format!("{}\r\n{}", "x".repeat(4095), "\n".repeat(4096));
    assert_eq!(line(&long, 4097), 2);
    assert_eq!(line(&long, 8193), 4098);
    // Behind the script's end.
    assert_eq!(line("a\n", 3), 0);
    // A script whose text is a part of a file.
    let mut memory = memory_of("weave");
    memory.put(SCRIPT + 24, 40 << 32);
    assert_eq!(named(&mut memory)[0].2, 43);
    memory.put(SCRIPT + 24, u64::MAX << 32);
    assert_eq!(named(&mut memory)[0].2, 2);
}

#[test]
fn built_in_functions_and_scripts_have_names_too() {
    let mut memory = memory_of("weave");
    memory.put(SHARED_INFO + 16, NAME + TAG);
    memory.put(SHARED_INFO + 32, UNDEFINED + TAG);
    let built_in = ("weave".to_owned(), String::new(), 0);
    assert_eq!(named(&mut memory), [built_in]);
    // The code of a script, outside of functions.
    let mut memory = memory_of("weave");
    memory.put(SCOPE + 8, 4 << 32);
    let script = ("(anonymous)".to_owned(), "/srv/loom.js".to_owned(), 1);
    assert_eq!(named(&mut memory), [script]);
}
