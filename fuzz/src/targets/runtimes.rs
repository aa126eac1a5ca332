//! The memory of a process that seems to have a language's runtime: its threads, frames, functions and names. The input has a version, then
//! the memory.

mod java;
mod javascript;

use kvmprof_introspection::ProcessRuntime;
use kvmprof_introspection::parts::{LanguageFrames, ProcessMemory, python_of_version};
use kvmprof_recording::MAX_STACK_FRAMES;
use kvmprof_recording::file::LanguageFunction;

use crate::input::Input;

/// A version for each way to walk frames of Python. Those that describe themselves are walked as 3.12. Versions of Node.js follow, then
/// one of the JDK.
const VERSIONS: [u32; 4] = [0x030b_02f0, 0x030c_01f0, 0x030a_00f0, 0x0309_12f0];
/// Where the memory begins.
const BASE: u64 = 0x1000;
/// The FS base of the running thread.
const POINTER: u64 = 0x7777;
/// Places of the seeds' text, table of lines, and thread.
const NAME: u64 = BASE + 0x600;
const TABLE: u64 = BASE + 0x700;
const THREAD: u64 = BASE + 0x80;
/// Maximum number of characters of a name.
const MAX_NAME: usize = 1024;
/// Maximum number of reads for one stack: two for each frame, thread and interpreter, and four for each call.
const MAX_READS: u32 = 2 * (1536 + 128 + 8) + 4 * 256 + 16;

struct Bytes<'a> {
    bytes: &'a [u8],
    /// Where the memory begins.
    base: u64,
    reads: u32,
}

impl ProcessMemory for Bytes<'_> {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.reads += 1;
        let begin = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = begin.checked_add(buffer.len())?;
        buffer.copy_from_slice(self.bytes.get(begin..end)?);
        Some(())
    }
}

/// Walks the frames, and reads the names of what is met.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let others = VERSIONS.len() + javascript::VERSIONS.len();
    let version = usize::from(input.u8()) % (others + 1);
    let Some(version) = VERSIONS.get(version) else {
        return match version == others {
            true => java::run(input.rest()),
            false => javascript::run(version - VERSIONS.len(), input.rest()),
        };
    };
    let runtime = python_of_version(*version, BASE).unwrap();
    let process = ProcessRuntime::new(runtime, 0, 0x1000, 1);
    let mut memory = Bytes {
        bytes: input.rest(),
        base: BASE,
        reads: 0,
    };
    let mut frames = LanguageFrames::default();
    process.walk_in(POINTER, &mut memory, &mut frames);
    assert!(frames.length() <= MAX_STACK_FRAMES && memory.reads <= MAX_READS);
    check(&process.read_new(&mut memory), frames.length());
}

/// Checks the functions of a number of frames.
fn check(functions: &[LanguageFunction], frames: usize) {
    assert!(functions.len() <= frames);
    for function in functions {
        assert!(function.name.chars().count() <= MAX_NAME);
        assert!(function.file.chars().count() <= MAX_NAME);
        assert!(function.lines.is_sorted_by_key(|(offset, _)| *offset));
    }
}

/// A thread of each version with three frames, in two calls of the interpreter, of one function with a name; those of Node.js and of the
/// JDK have two frames.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("linked", linked()),
        ("shimmed", shimmed()),
        ("single", single()),
        ("held", held()),
        ("javascript", javascript::seed()),
        ("java", java::seed()),
    ]
}

/// The memory of a process, after the version.
struct Image(Vec<u8>);

impl Image {
    fn new(version: u8) -> Self {
        Self([&[version][..], &[0; 0x800]].concat())
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        let begin = usize::try_from(address - BASE).unwrap() + 1;
        self.0[begin..begin + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }

    /// A function at `code` with the line at `line`, whose strings begin with `head` bytes.
    fn function(&mut self, code: u64, line: u64, head: u64) {
        self.word(code + 16, 8);
        self.word(code + line, 20);
        for field in [112, 120, 128] {
            self.word(code + field, NAME);
        }
        self.word(code + 136, TABLE);
        self.text(head, &[0x80 | 11 << 3 | 1, 0, 0x80 | 13 << 3 | 5, 2]);
    }

    /// A function of 3.10 or earlier at `code`.
    fn older_function(&mut self, code: u64) {
        self.word(code + 40, 20);
        for (field, place) in [(104, NAME), (112, NAME), (120, TABLE)] {
            self.word(code + field, place);
        }
        self.text(48, &[0, 1, 4, 3, 6, 0xfe]);
    }

    /// A name behind a head of `head` bytes, and the `table` of lines.
    fn text(&mut self, head: u64, table: &[u8]) {
        self.word(NAME + 16, 5);
        self.word(NAME + 32, 1 << 2 | 1 << 5 | 1 << 6);
        self.put(NAME + head, b"weave");
        self.word(TABLE + 16, table.len() as u64);
        self.put(TABLE + 32, table);
    }
}

fn linked() -> Vec<u8> {
    let mut image = Image::new(0);
    let (interpreter, thread, code) = (BASE + 0x40, BASE + 0x80, BASE + 0x500);
    let [inner, outer, first] = [0x200, 0x240, 0x280].map(|offset| BASE + offset);
    image.word(BASE + 40, interpreter);
    image.word(interpreter + 16, thread);
    image.word(thread + 152, POINTER);
    image.word(thread + 56, inner);
    let frame = |number: u64| BASE + 0x300 + number * 0x60;
    for (call, current, before) in [(inner, frame(0), outer), (outer, frame(2), first)] {
        image.word(call + 8, current);
        image.word(call + 16, before);
    }
    for number in 0..3 {
        image.word(frame(number) + 32, code);
        image.word(
            frame(number) + 48,
            if number < 2 { frame(number + 1) } else { 0 },
        );
        image.word(frame(number) + 56, code + 184 + 4);
        image.word(frame(number) + 64, u64::from(number > 0) << 32);
    }
    image.function(code, 72, 48);
    image.0
}

fn shimmed() -> Vec<u8> {
    let mut image = Image::new(1);
    let (interpreter, thread, code) = (BASE + 0x40, BASE + 0x100, BASE + 0x500);
    let call = BASE + 0x200;
    image.word(BASE + 40, interpreter);
    image.word(interpreter + 72, thread);
    image.word(thread + 136, POINTER);
    image.word(thread + 56, call);
    let frame = |number: u64| BASE + 0x240 + number * 0x60;
    image.word(call, frame(0));
    for (number, owner) in [(0, 0), (1, 0), (2, 3), (3, 0), (4, 3)] {
        image.word(frame(number), code);
        image.word(
            frame(number) + 8,
            if number < 4 { frame(number + 1) } else { 0 },
        );
        image.word(frame(number) + 56, code + 192 + 4);
        image.word(frame(number) + 64, owner << 48);
    }
    image.function(code, 68, 40);
    image.0
}

/// Three frames of 3.10 or earlier, whose instructions are at `instruction`, by the list that begins at THREAD.
fn older_frames(image: &mut Image, instruction: u64) {
    let (interpreter, code) = (BASE + 0x40, BASE + 0x500);
    image.word(BASE + 32, interpreter);
    image.word(interpreter + 8, THREAD);
    image.word(THREAD + 176, POINTER);
    let frame = |number: u64| BASE + 0x240 + number * 0x70;
    image.word(THREAD + 24, frame(0));
    for number in 0..3 {
        image.word(
            frame(number) + 24,
            if number < 2 { frame(number + 1) } else { 0 },
        );
        image.word(frame(number) + 32, code);
        image.word(frame(number) + instruction, 2 * number);
    }
    image.older_function(code);
}

fn single() -> Vec<u8> {
    let mut image = Image::new(2);
    older_frames(&mut image, 96);
    // Its calls, the last of which is a part of the thread's state.
    let calls = [BASE + 0x400, BASE + 0x440, BASE + 0x480, THREAD + 0x100];
    image.word(THREAD + 48, calls[0]);
    for pair in calls.windows(2) {
        image.word(pair[0] + 8, pair[1]);
    }
    image.0
}

fn held() -> Vec<u8> {
    let mut image = Image::new(3);
    older_frames(&mut image, 104);
    image.0
}
