//! Memory of processes that look like HotSpot's, and memory that changes while it is read.

use super::super::test_memory::Words;
use super::*;
use crate::unwind::MAX_INLINED;
use kvmprof_recording::LanguageFrame;

/// The variables that lead to the array of heaps and the interpreter's code, and one with a return address; what they lead to.
const VARIABLES: u64 = 0x10_0000_0000;
const ARRAY: u64 = VARIABLES + 0x100;
const HEAP: u64 = VARIABLES + 0x200;
const STUBS: u64 = VARIABLES + 0x500;
const NAME: u64 = VARIABLES + 0x600;
/// A heap of segments of 128 bytes, and its map.
const CODE: u64 = 0x20_0000_0000;
const CODE_END: u64 = CODE + 0x10_0000;
const MAP: u64 = 0x30_0000_0000;
/// The interpreter's code, what calls Java, and a block with compiled code behind its head.
const INTERPRETER: u64 = CODE + 0x1000;
const CALL_STUB: u64 = CODE + 0x3333;
const BLOCK: u64 = CODE + 0x8000;
const COMPILED: u64 = BLOCK + 0x200;
const COMPILED_END: u64 = BLOCK + 0x400;
/// Methods, 0x1000 bytes for each with all that belongs to it.
const METHODS: u64 = 0x40_0000_0000;
/// Data of compiled code: that which changes has the methods, the other has places and scopes.
const CHANGING: u64 = 0x50_0000_0000;
const CONSTANT: u64 = 0x60_0000_0000;
/// The frame pointer of a frame of the interpreter, and its caller's registers.
const BP: u64 = 0x7000_0000_0100;
const SENDER: u64 = BP + 0x20;
const CALLER_BP: u64 = BP + 0x80;
const BACK: u64 = INTERPRETER + 0x77;
/// Maximum number of reads for one frame.
const MAX_READS: usize = 208;

fn put_text(memory: &mut Words, at: u64, text: &str) {
    let mut bytes = vec![1, 0, 0x34, 0x12];
    bytes.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    put_bytes(memory, at, &bytes);
}

fn put_bytes(memory: &mut Words, at: u64, bytes: &[u8]) {
    for (place, part) in (at..).step_by(8).zip(bytes.chunks(8)) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        memory.put(place, u64::from_le_bytes(word));
    }
}

fn method(number: u64) -> u64 {
    METHODS + 0x1000 * number
}

/// The code of a method begins here.
fn bytecode(number: u64) -> u64 {
    method(number) + 0x100 + 56
}

/// Puts method number `number`, which begins in line 7 of Loom.java, into the memory.
fn put_method(memory: &mut Words, number: u64, class: &str, name: &str) {
    let at = method(number);
    let [constant, pool, class_at, text] = [0x100, 0x200, 0x400, 0x600].map(|offset| at + offset);
    memory.put(at + 8, constant);
    memory.put(constant + 8, pool);
    // Its words, its flags, its code's length, and its name's number.
    memory.put(constant + 24, 1 << 32 | 16);
    memory.put(constant + 32, 2 << 32 | 20 << 16);
    // Line 7 from the first bytecode on, 8 from the third one on.
    let table = [0, 0, 0, 0, 7, 2 << 3 | 1, 0];
    put_bytes(memory, constant + 56 + 16, &table);
    memory.put(pool + 24, class_at);
    // The number of its file's name, and how many there are.
    memory.put(pool + 56, 3 << 48);
    memory.put(pool + 64, 4 << 32);
    for (number, place) in [(2, 0x40), (3, 0x80)] {
        memory.put(pool + 80 + 8 * number, text + place);
    }
    memory.put(class_at + 24, text);
    memory.put(class_at + 216, pool);
    put_text(memory, text, class);
    put_text(memory, text + 0x40, name);
    put_text(memory, text + 0x80, "Loom.java");
}

/// The memory of a process of JDK 25 with two methods, and a frame of the first one in the interpreter.
fn memory() -> Words {
    let mut memory = Words::default();
    for (place, word) in [
        (VARIABLES, ARRAY),
        (VARIABLES + 8, STUBS),
        (VARIABLES + 16, CALL_STUB),
        (ARRAY, 1),
        (ARRAY + 8, ARRAY + 0x40),
        (ARRAY + 0x40, HEAP),
        (HEAP, CODE),
        (HEAP + 8, CODE_END),
        (HEAP + 16, CODE),
        (HEAP + 112 + 16, MAP),
        (HEAP + 248, 7),
        (STUBS + 8, INTERPRETER),
        (STUBS + 16, 0x1000 << 32),
        (BP - 64, bytecode(0) + 2),
        (BP - 24, method(0)),
        (BP - 8, SENDER),
        (BP, CALLER_BP),
        (BP + 8, BACK),
    ] {
        memory.put(place, word);
    }
    put_method(&mut memory, 0, "loom/Loom", "weave");
    put_method(&mut memory, 1, "loom/Loom$Weaver", "inner");
    put_compiled(&mut memory);
    memory
}

/// Puts compiled code of the first method into the memory, which has the second one in it, with a frame of 48 bytes.
fn put_compiled(memory: &mut Words) {
    let head = BLOCK + 8;
    // All of the map is free, but for eight segments.
    for place in (MAP..MAP + 0x200).step_by(8) {
        memory.put(place, u64::MAX);
    }
    put_bytes(
        memory,
        MAP + ((BLOCK - CODE) >> 7),
        &[0, 1, 2, 3, 4, 5, 6, 7],
    );
    put_bytes(memory, NAME, b"any stubs\0");
    for (place, word) in [
        (BLOCK, 1 << 32 | 8),
        (head + 8, NAME),
        (head + 16, CHANGING),
        // The length of what precedes the methods there; the begin and the end of its code, words of a frame; its head's length, and where
        // a frame is complete.
        (head + 24, 0x20 << 32),
        (head + 32, (COMPILED - head) << 32),
        (head + 40, 6 << 32 | (COMPILED_END - head)),
        (head + 48, 5 << 48 | 224 << 32),
        (head + 80, method(0)),
        (head + 96, CONSTANT),
        (head + 192, 0x10 << 32),
        (head + 200, 0x100),
        (CHANGING + 0x20, method(0)),
        (CHANGING + 0x28, method(1)),
        // Places: two without a scope, and two in the second method, which the first one has called at its bytecode 3.
        (CONSTANT + 0x10, u64::from(u32::MAX)),
        (CONSTANT + 0x20, 9 << 32 | 0x40),
        (CONSTANT + 0x30, 9 << 32 | 0x80),
        (CONSTANT + 0x40, 0x7fff_ffff),
    ] {
        memory.put(place, word);
    }
    for empty in (CONSTANT + 0x50..CONSTANT + 0x100).step_by(16) {
        memory.put(empty, 0x7fff_ffff);
    }
    // Each byte is one more: the outer scope's place, the method's number, the bytecode and 1.
    put_bytes(memory, CONSTANT + 0x100, &[0, 1, 2, 5, 0, 0, 0, 0]);
    put_bytes(memory, CONSTANT + 0x108, &[0, 2, 3, 4, 0, 0, 0, 0]);
    put_bytes(memory, CONSTANT + 0x110, &[0; 16]);
    put_bytes(memory, COMPILED, &[0x90; 0x200]);
    let stack = BP + 0x200;
    memory.put(stack + 32, CALLER_BP);
    memory.put(stack + 40, BACK);
}

fn process(memory: &mut Words) -> Option<ProcessRuntime> {
    let places = [VARIABLES, VARIABLES + 8, VARIABLES + 16];
    let runtime = of_jdk_25(places, memory)?;
    Some(ProcessRuntime::new(runtime, 0, 0x1000, 7))
}

/// A frame of the interpreter that has made a call.
fn interpreted() -> BareFrame {
    BareFrame {
        ip: INTERPRETER + 0x500,
        sp: BP - 0x80,
        bp: BP,
        ..BareFrame::default()
    }
}

/// A frame of the compiled code that has made a call.
fn compiled() -> BareFrame {
    BareFrame {
        ip: COMPILED + 0x40,
        sp: BP + 0x200,
        bp: 0x1234_5678,
        ..BareFrame::default()
    }
}

/// What `frame` executes: the names of methods with the lines, and the caller's registers; no methods if it isn't a frame of them.
fn shown(frame: BareFrame, memory: &mut Words) -> (Vec<(String, u32)>, [u64; 3]) {
    let Some(process) = process(memory) else {
        return Default::default();
    };
    memory.reads = 0;
    let executed = process.executed(frame, memory);
    assert!(memory.reads <= MAX_READS, "{}", memory.reads);
    let functions = process.read_new(memory);
    let Executed::Called(called) = executed else {
        return Default::default();
    };
    let methods = called.words().iter().filter_map(|word| {
        let frame = LanguageFrame::from_word(*word)?;
        assert_eq!(frame.language_name(), "java");
        let function = functions.iter().find(|it| it.function == frame.function)?;
        let line = frame.offset.and_then(|offset| function.line_at(offset));
        Some((function.name.clone(), line.unwrap_or(0)))
    });
    (methods.collect(), called.caller)
}

fn methods(frame: BareFrame, memory: &mut Words) -> Vec<(String, u32)> {
    shown(frame, memory).0
}

fn weave(line: u32) -> (String, u32) {
    ("loom.Loom.weave".to_owned(), line)
}

fn inner(line: u32) -> (String, u32) {
    ("loom.Loom$Weaver.inner".to_owned(), line)
}

#[test]
fn frames_of_the_interpreter_show_their_methods() {
    let caller = [BACK, SENDER, CALLER_BP];
    let mut memory = memory();
    assert_eq!(shown(interpreted(), &mut memory), (vec![weave(8)], caller));
    let process = process(&mut memory).unwrap();
    process.executed(interpreted(), &mut memory);
    let [function] = &process.read_new(&mut memory)[..] else {
        panic!("one method has a frame");
    };
    assert_eq!((&*function.file, function.line), ("Loom.java", 7));
    // While it executes a bytecode, R13 has that one's address.
    let exact = |r13: u64| BareFrame {
        is_exact: true,
        r13: Some(r13),
        ..interpreted()
    };
    assert_eq!(
        shown(exact(bytecode(0)), &mut memory),
        (vec![weave(7)], caller)
    );
    for other in [0, bytecode(0) - 1, bytecode(0) + 20, bytecode(1), u64::MAX] {
        assert_eq!(methods(exact(other), &mut memory), [], "{other:#x}");
    }
    // Unless it has just made a call, or its code reads the address.
    memory.put(BP - 16, BP - 0x90);
    assert_eq!(methods(exact(BP - 0x90), &mut memory), [weave(8)]);
    memory.put(BP - 16, 0_u64.wrapping_sub(0x12));
    assert_eq!(methods(exact(BP - 0x90), &mut memory), [weave(8)]);
    put_bytes(
        &mut memory,
        INTERPRETER + 0x500,
        &[0x90, 0x4c, 0x8b, 0x6d, 0xc0],
    );
    assert_eq!(methods(exact(0), &mut memory), [weave(8)]);
    // A frame of the second method that is being made, before and after its caller's stack pointer is saved.
    let code = [0x50, 0x55, 0x48, 0x8b, 0xec, 0x41, 0x55, 0x68, 0, 0, 0, 0];
    put_bytes(&mut memory, INTERPRETER + 0x600, &code);
    for (ip, r13) in [(INTERPRETER + 0x605, SENDER), (INTERPRETER + 0x607, 0)] {
        let made = BareFrame {
            ip,
            rbx: Some(method(1)),
            ..exact(r13)
        };
        assert_eq!(
            shown(made, &mut memory),
            (vec![inner(7)], caller),
            "{ip:#x}"
        );
    }
}

#[test]
fn compiled_code_shows_what_was_put_into_it() {
    let mut memory = memory();
    let caller = [BACK, BP + 0x230, CALLER_BP];
    let (both, own) = (vec![inner(8), weave(8)], vec![weave(0)]);
    assert_eq!(shown(compiled(), &mut memory), (both, caller));
    let at = |distance: u64, is_exact| BareFrame {
        ip: COMPILED + distance,
        is_exact,
        ..compiled()
    };
    // The line of an instruction before a place isn't known, nor is that behind a call that is none.
    for (distance, is_exact) in [(0x33, true), (0x44, false)] {
        let found = methods(at(distance, is_exact), &mut memory);
        assert_eq!(found, [inner(0), weave(8)], "{distance:#x}");
    }
    assert_eq!(methods(at(0x80, true), &mut memory), [inner(8), weave(8)]);
    assert_eq!(
        methods(at(0x99, true), &mut memory),
        own,
        "behind the last place"
    );
    // Before its frame is complete, the return address comes first.
    let begun = shown(
        BareFrame {
            sp: BP + 0x228,
            ..at(2, true)
        },
        &mut memory,
    );
    assert_eq!(begun.1, [BACK, BP + 0x230, compiled().bp]);
    // What calls Java has a frame pointer; other code, and none, is any code.
    let process = process(&mut memory).unwrap();
    let executed = |ip, is_exact, memory: &mut Words| {
        let (sp, bp) = (BP, BP);
        process.executed(
            BareFrame {
                ip,
                is_exact,
                sp,
                bp,
                ..BareFrame::default()
            },
            memory,
        )
    };
    assert_eq!(executed(CALL_STUB, false, &mut memory), Executed::Runtime);
    assert_eq!(executed(CODE - 8, true, &mut memory), Executed::Unknown);
    assert_eq!(executed(CODE_END, true, &mut memory), Executed::Unknown);
    assert_eq!(executed(CODE + 0x6000, true, &mut memory), Executed::Lost);
    memory.put(BLOCK + 8 + 48, 5 << 48 | 64 << 32);
    assert_eq!(executed(COMPILED + 9, true, &mut memory), Executed::Unknown);
}

#[test]
fn wild_pointers_end_the_stack() {
    let wild = [
        0,
        1,
        BP,
        BLOCK,
        NAME,
        0x7fff_ffff_ffff_fff9,
        0xffff_8000_0000_0001,
        u64::MAX,
    ];
    let frames = [
        interpreted(),
        compiled(),
        BareFrame {
            is_exact: true,
            ..compiled()
        },
    ];
    let at = method(0);
    // To the method and to its class.
    let leading = [BP - 24, at + 8, at + 0x108, at + 0x218, at + 0x400 + 216];
    let whole = memory();
    let places = whole.places().into_iter();
    let filled = [
        MAP..MAP + 0x100,
        MAP + 0x108..MAP + 0x200,
        COMPILED..COMPILED_END,
    ];
    for place in places.filter(|place| !filled.iter().any(|filled| filled.contains(place))) {
        for word in wild {
            let mut memory = whole.clone();
            memory.put(place, word);
            for frame in frames {
                let (methods, [_, sp, _]) = shown(frame, &mut memory);
                assert!(methods.is_empty() || sp > frame.sp, "{place:#x}: {word:#x}");
            }
            if leading.contains(&place) {
                let found = methods(interpreted(), &mut memory);
                assert_eq!(found, [], "{place:#x}: {word:#x}");
            }
        }
    }
    // The frame leads downwards, or to no code.
    for (place, word) in [
        (BP - 8, BP),
        (BP - 8, BP + 12),
        (BP - 8, BP + (9 << 20)),
        (BP + 8, NAME),
    ] {
        let mut memory = memory();
        memory.put(place, word);
        assert_eq!(
            methods(interpreted(), &mut memory),
            [],
            "{place:#x}: {word:#x}"
        );
    }
}

#[test]
fn memory_that_is_used_again_gives_no_name() {
    let at = method(0);
    let changes = [
        // Another class with a name at the same address, and another method.
        (at + 0x600, 0x6f6c_0009_4321_0001),
        (at + 0x100 + 32, 2 << 32 | 21 << 16),
    ];
    for (place, word) in changes {
        let mut memory = memory();
        let process = process(&mut memory).unwrap();
        let before = process.executed(interpreted(), &mut memory);
        memory.put(place, word);
        assert_eq!(process.read_new(&mut memory), [], "the tick's one is gone");
        assert_ne!(before, process.executed(interpreted(), &mut memory));
        assert_eq!(process.read_new(&mut memory).len(), 1, "{place:#x}");
    }
    // The number of references changes while a name exists.
    let mut memory = memory();
    let process = process(&mut memory).unwrap();
    process.executed(interpreted(), &mut memory);
    let word = memory.word(at + 0x600).unwrap();
    memory.put(at + 0x600, word + 1);
    assert_eq!(process.read_new(&mut memory).len(), 1);
}

#[test]
fn scopes_and_names_are_bounded() {
    // Each scope was put into the one before.
    let mut memory = memory();
    let scopes = (0..20).flat_map(|number| [4 * number + 1, 2, 2, 0]);
    let scopes: Vec<u8> = [0; 4].into_iter().chain(scopes).collect();
    put_bytes(&mut memory, CONSTANT + 0x100, &scopes);
    memory.put(CONSTANT + 0x20, (4 + 4 * 19) << 32 | 0x40);
    let process = process(&mut memory).unwrap();
    let Executed::Called(called) = process.executed(compiled(), &mut memory) else {
        panic!("it is a frame");
    };
    assert_eq!((called.words().len(), called.is_cut), (MAX_INLINED, true));
    // One that leads to itself, or further on, and a method that isn't there.
    for scope in [[10, 3, 3], [99, 3, 3], [2, 9, 3]] {
        let mut memory = self::memory();
        put_bytes(
            &mut memory,
            CONSTANT + 0x108,
            &[[0].as_slice(), &scope, &[0; 4]].concat(),
        );
        assert_eq!(methods(compiled(), &mut memory), [], "{scope:?}");
    }
    // A map of segments that leads on and on, and one that leads to before the heap.
    for back in [1, 200] {
        let mut memory = self::memory();
        for place in (MAP..MAP + 0x4000).step_by(8) {
            memory.put(place, u64::from_le_bytes([back; 8]));
        }
        assert_eq!(
            methods(
                BareFrame {
                    ip: CODE + 0x8_0000,
                    ..compiled()
                },
                &mut memory
            ),
            []
        );
    }
    // A name without an end.
    let mut memory = self::memory();
    put_text(&mut memory, method(0) + 0x8000, &"x".repeat(70_000));
    memory.put(method(0) + 0x200 + 80 + 16, method(0) + 0x8000);
    let [(name, _)] = &methods(interpreted(), &mut memory)[..] else {
        panic!("it has a name");
    };
    assert_eq!(name.len(), 1024);
}
