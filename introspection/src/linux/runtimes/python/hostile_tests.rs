//! Memory of processes that look like an interpreter, and aren't one.

use super::super::ProcessRuntime;
use super::super::test_memory::Words;
use super::*;
use crate::unwind::LanguageFrames;
use kvmprof_recording::{LanguageFrame, MAX_STACK_FRAMES};

const RUNTIME: u64 = 0x1_0000;
const INTERPRETER: u64 = 0x2_0000;
const THREAD: u64 = 0x3_0000;
/// The calls of the interpreter, on the stack.
const CALLS: u64 = 0x7000_0000;
const FRAMES: u64 = 0x4_0000;
const CODE: u64 = 0x5_0000;
const NAME: u64 = 0x6_0000;
const FILE: u64 = 0x6_1000;
const TABLE: u64 = 0x6_2000;
/// The thread's FS base.
const POINTER: u64 = 0x7fff_1000;
const SIZE_OF_FRAME: u64 = 0x100;
/// Frames of a deep recursion.
const DEEP: u64 = 0x100_0000;

fn python(version: u32) -> Arc<dyn Runtime> {
    of_version(version, RUNTIME - 0x1000).unwrap()
}

fn frame(number: u64) -> u64 {
    FRAMES + number * SIZE_OF_FRAME
}

/// The memory of a thread of 3.11 with two frames in its innermost call of the interpreter, and one in another.
fn memory() -> Words {
    let mut memory = Words::default();
    memory.put(RUNTIME + 40, INTERPRETER);
    memory.put(INTERPRETER + 16, THREAD + 0x1000);
    // Another thread precedes it.
    memory.put(THREAD + 0x1000 + 152, 1);
    memory.put(THREAD + 0x1000 + 8, THREAD);
    memory.put(THREAD + 152, POINTER);
    memory.put(THREAD + 56, CALLS);
    memory.put(CALLS + 8, frame(0));
    memory.put(CALLS + 16, CALLS + 0x1000);
    memory.put(CALLS + 0x1000 + 8, frame(2));
    memory.put(CALLS + 0x1000 + 16, THREAD + 0x800);
    memory.put(THREAD + 0x800, 0);
    for number in 0..3 {
        let at = frame(number);
        memory.put(at + 32, CODE);
        memory.put(at + 48, if number < 2 { frame(number + 1) } else { 0 });
        memory.put(at + 56, CODE + 184 + 2 * (number + 1));
        memory.put(at + 64, u64::from(number > 0) << 32);
    }
    // A code object of 8 instructions that begins in line 20.
    memory.put(CODE + 16, 8);
    memory.put(CODE + 72, 20);
    memory.put(CODE + 112, FILE);
    memory.put(CODE + 120, NAME);
    memory.put(CODE + 128, NAME);
    memory.put(CODE + 136, TABLE);
    put_text(&mut memory, NAME, "weave");
    put_text(&mut memory, FILE, "/srv/loom.py");
    // Two instructions in line 21, the others in 22.
    memory.put(
        TABLE + 32,
        u64::from_le_bytes([0x80 | 11 << 3 | 1, 0, 0x80 | 11 << 3 | 5, 0, 0, 0, 0, 0]),
    );
    memory.put(TABLE + 16, 4);
    memory
}

fn put_text(memory: &mut Words, at: u64, text: &str) {
    memory.put(at + 16, text.len() as u64);
    // Compact, ASCII, one byte a character.
    memory.put(at + 32, 1 << 2 | 1 << 5 | 1 << 6);
    memory.put(at + 40, 0);
    for (place, part) in (at + 48..).step_by(8).zip(text.as_bytes().chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        memory.put(place, u64::from_le_bytes(bytes));
    }
}

struct Walked {
    runs: Vec<(u64, Vec<LanguageFrame>)>,
    is_cut: bool,
    reads: usize,
}

fn process(version: u32) -> ProcessRuntime {
    ProcessRuntime::new(python(version), 0x1000, 0x1000, 7)
}

fn walk(process: &ProcessRuntime, memory: &mut Words) -> Walked {
    let mut frames = LanguageFrames::default();
    memory.reads = 0;
    process.walk_in(POINTER, memory, &mut frames);
    let frame = |word: &u64| LanguageFrame::from_word(*word).unwrap();
    let runs = frames.runs().into_iter();
    Walked {
        runs: runs
            .map(|(anchor, words)| (anchor, words.iter().map(frame).collect()))
            .collect(),
        is_cut: frames.is_cut(),
        reads: memory.reads,
    }
}

/// The walk of `memory` by each version whose layout is in a table. The memory is that of 3.11; for others it has any contents.
fn walk_all(memory: &mut Words) -> Walked {
    let walked = walk(&process(0x030b_02f0), memory);
    for version in [
        0x0308_12f0,
        0x0309_12f0,
        0x030a_00f0,
        0x030b_02f0,
        0x030c_01f0,
    ] {
        let walked = walk(&process(version), memory);
        let frames: usize = walked.runs.iter().map(|(_, frames)| frames.len()).sum();
        assert!(
            frames <= MAX_STACK_FRAMES && walked.reads < 8000,
            "{}",
            walked.reads
        );
    }
    walked
}

#[test]
fn calls_are_walked_with_their_frames() {
    let (process, mut memory) = (process(0x030b_02f0), memory());
    let walked = walk(&process, &mut memory);
    let lengths: Vec<(u64, usize)> = walked
        .runs
        .iter()
        .map(|(anchor, it)| (*anchor, it.len()))
        .collect();
    assert_eq!(lengths, [(CALLS, 2), (CALLS + 0x1000, 1)]);
    assert!(!walked.is_cut);
    let functions = process.read_new(&mut memory);
    let [function] = &functions[..] else {
        panic!("one function has three frames");
    };
    assert_eq!(
        (&*function.name, &*function.file, function.line),
        ("weave", "/srv/loom.py", 20)
    );
    let offsets = walked.runs.iter().flat_map(|(_, frames)| frames);
    let lines = offsets.map(|frame| function.line_at(frame.offset.unwrap()));
    assert_eq!(lines.collect::<Vec<_>>(), [Some(21), Some(22), Some(22)]);
    assert_eq!(process.read_new(&mut memory), [], "it has been read");
}

/// The memory of a thread of 3.9 with three frames, the outermost of which continues one at `outer`.
fn held_memory(outer: u64) -> Words {
    let mut memory = Words::default();
    memory.put(RUNTIME + 32, INTERPRETER);
    memory.put(INTERPRETER + 8, THREAD);
    memory.put(THREAD + 176, POINTER);
    memory.put(THREAD + 24, frame(0));
    for (number, byte) in (0..3).zip([6, 2, -1_i32]) {
        let at = frame(number);
        let caller = if number < 2 { frame(number + 1) } else { outer };
        memory.put(at + 24, caller);
        memory.put(at + 32, CODE);
        memory.put(at + 104, byte.cast_unsigned().into());
    }
    memory.put(CODE + 40, 20);
    memory.put(CODE + 104, FILE);
    memory.put(CODE + 112, NAME);
    memory.put(CODE + 120, TABLE);
    put_text(&mut memory, NAME, "weave");
    put_text(&mut memory, FILE, "/srv/loom.py");
    // Two instructions in line 21, the others in 24.
    memory.put(TABLE + 32, u64::from_le_bytes([0, 1, 4, 3, 0, 0, 0, 0]));
    memory.put(TABLE + 16, 4);
    memory
}

#[test]
fn frames_that_calls_hold_are_walked() {
    let (process, mut memory) = (process(0x0309_12f0), held_memory(0));
    let walked = walk(&process, &mut memory);
    let anchors = walked.runs.iter().map(|(anchor, _)| *anchor);
    assert!(anchors.eq((0..3).map(frame)) && !walked.is_cut);
    let functions = process.read_new(&mut memory);
    let frames = walked.runs.iter().flat_map(|(_, frames)| frames);
    let lines = frames.map(|frame| functions[0].line_at(frame.offset?));
    // The third one has executed nothing.
    assert_eq!(lines.collect::<Vec<_>>(), [Some(24), Some(21), None]);
    for outer in [frame(0), 0x1234_5000, u64::MAX] {
        walk_all(&mut held_memory(outer));
        let walked = walk(&process, &mut held_memory(outer));
        assert!(walked.is_cut && walked.runs.len() >= 3, "{outer:#x}");
    }
}

#[test]
fn a_thread_without_python_has_no_frames() {
    let mut other = memory();
    other.put(THREAD + 152, POINTER + 1);
    let walked = walk_all(&mut other);
    assert_eq!((walked.runs.len(), walked.is_cut), (0, false));
    // Lists of threads and interpreters without an end.
    other.put(THREAD + 8, THREAD);
    other.put(INTERPRETER, INTERPRETER);
    let walked = walk_all(&mut other);
    assert_eq!((walked.runs.len(), walked.is_cut), (0, false));
}

#[test]
fn circular_frames_are_cut() {
    for caller in [frame(0), frame(1)] {
        let mut circular = memory();
        circular.put(frame(0) + 48, caller);
        circular.put(frame(1) + 48, caller);
        circular.put(frame(1) + 64, 0);
        assert!(walk_all(&mut circular).is_cut);
    }
    // Calls without an end, each with a frame that fits.
    let mut calls = memory();
    calls.put(CALLS + 0x1000 + 16, CALLS + 0x1000);
    calls.put(frame(2) + 48, frame(2));
    assert!(walk_all(&mut calls).is_cut);
}

#[test]
fn wild_pointers_end_the_walk() {
    for place in [
        THREAD + 56,
        CALLS + 8,
        CALLS + 16,
        frame(0) + 32,
        frame(0) + 48,
        frame(1) + 48,
    ] {
        for wild in [
            0,
            1,
            0x1234_5000,
            0x7fff_ffff_ffff_fff8,
            0xffff_8000_0000_0000,
            u64::MAX,
        ] {
            let mut memory = memory();
            memory.put(place, wild);
            let walked = walk_all(&mut memory);
            // The last call has no callers.
            let is_end = place == CALLS + 16 && wild == 0;
            assert!(walked.is_cut || is_end, "{place:#x}: {wild:#x}");
        }
    }
}

/// More frames than a stack has room for: the innermost ones are there, with the call that executes them.
#[test]
fn deep_recursion_keeps_its_innermost_frames() {
    for (version, first) in [(0x030b_02f0, 48), (0x030c_01f0, 8)] {
        let mut memory = memory();
        if version == 0x030c_01f0 {
            memory.put(INTERPRETER + 72, THREAD);
            memory.put(THREAD + 136, POINTER);
            memory.put(CALLS, DEEP);
        }
        memory.put(CALLS + 8, DEEP);
        for number in 0..400 {
            let at = DEEP + number * SIZE_OF_FRAME;
            let is_last = number == 399;
            memory.put(at + if first == 48 { 32 } else { 0 }, CODE);
            memory.put(at + first, at + SIZE_OF_FRAME);
            memory.put(at + 56, CODE + 200);
            memory.put(at + 64, if is_last { 3 << 48 | 1 << 32 } else { 0 });
        }
        let process = process(version);
        let mut frames = LanguageFrames::with_limit(128);
        process.walk_in(POINTER, &mut memory, &mut frames);
        let runs = frames.runs();
        assert_eq!(runs.len(), 1, "{version:#x}");
        assert_eq!((runs[0].1.len(), frames.is_cut()), (128, true));
        let anchor = if first == 48 {
            CALLS
        } else {
            DEEP + 399 * SIZE_OF_FRAME
        };
        assert_eq!(runs[0].0, anchor);
    }
}

/// A frame that doesn't continue the one of the call before, as of a thread that has changed its list meanwhile.
#[test]
fn calls_that_do_not_fit_together_are_cut() {
    let mut memory = memory();
    memory.put(frame(1) + 48, frame(0));
    let walked = walk_all(&mut memory);
    assert!(walked.is_cut && walked.runs.is_empty());
}

#[test]
fn reused_code_objects_get_no_name() {
    for (place, other) in [(72, 21), (16, 9), (120, FILE), (136, TABLE + 8), (24, 1)] {
        let (process, mut memory) = (process(0x030b_02f0), memory());
        let before = walk(&process, &mut memory);
        memory.put(CODE + place, other);
        assert_eq!(
            process.read_new(&mut memory),
            [],
            "the one of the tick is gone"
        );
        let after = walk(&process, &mut memory);
        assert_ne!(before.runs[0].1[0].function, after.runs[0].1[0].function);
        assert_eq!(process.read_new(&mut memory).len(), 1, "{place}");
    }
}

#[test]
fn functions_of_processes_have_different_numbers() {
    let number = |root, pid| {
        let process = ProcessRuntime::new(python(0x030b_02f0), 0x1000, root, pid);
        walk(&process, &mut memory()).runs[0].1[0].function
    };
    assert_eq!(number(0x1000, 7), number(0x1000, 7));
    assert_ne!(number(0x1000, 7), number(0x1000, 8));
    assert_ne!(number(0x1000, 7), number(0x2000, 7));
}

#[test]
fn enormous_names_are_cut_off_or_refused() {
    let named = |change: &dyn Fn(&mut Words)| {
        let (process, mut memory) = (process(0x030b_02f0), memory());
        change(&mut memory);
        walk(&process, &mut memory);
        process.read_new(&mut memory)
    };
    // What follows it in memory, up to the maximum.
    let endless = named(&|memory| memory.put(NAME + 16, u64::MAX));
    assert_eq!(endless[0].name.len(), 1024);
    let long = named(&|memory| {
        put_text(memory, NAME + 0x10_0000, &"x".repeat(5000));
        memory.put(CODE + 128, NAME + 0x10_0000);
    });
    assert_eq!(long[0].name.len(), 1024);
    for state in [
        0,
        1 << 2,
        3 << 2 | 1 << 5,
        7 << 2 | 1 << 5,
        2 << 2 | 1 << 5 | 1 << 6,
    ] {
        assert_eq!(
            named(&|memory| memory.put(NAME + 32, state)),
            [],
            "{state:#x}"
        );
    }
    assert_eq!(
        named(&|memory| memory.put(NAME + 16, 0)),
        [],
        "a function has a name"
    );
    // A table without an end leaves the lines unknown.
    let unknown = named(&|memory| memory.put(TABLE + 16, u64::MAX));
    assert_eq!(unknown[0].lines, []);
    // Characters that aren't any.
    let wide = named(&|memory| {
        memory.put(NAME + 32, 4 << 2 | 1 << 5);
        memory.put(NAME + 16, 2);
        memory.put(NAME + 72, 0x20_ac | 0xffff_ffff << 32);
    });
    assert_eq!(wide[0].name, "\u{20ac}\u{fffd}");
}
