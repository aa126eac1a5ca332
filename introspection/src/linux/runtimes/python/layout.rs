//! Where CPython keeps what a stack consists of.
//!
//! From 3.13 on the program describes itself (`_Py_DebugOffsets`, `Include/internal/pycore_debug_offsets.h`). Earlier versions differ in
//! their tables here, which are those of 64-bit builds without debugging (`Include/internal`, `Include/cpython` of each version).

use crate::bytes::{u32_at, u64_at};

/// The mark of programs that describe themselves.
const COOKIE: &[u8] = b"xdebugpy";
/// Offsets are below this number of bytes. The largest is in `PyInterpreterState`, which has some 200 KiB.
const MAX_OFFSET: u64 = 1 << 20;
/// Fields of structures that are read as a whole are below this number of bytes.
pub const MAX_FIELD: u64 = 256;
/// The number of bytes that hold all fields of such a structure.
pub const STRUCTURE_BYTES: usize = 264;

/// How the frames of calls of the interpreter are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Each call executes one frame, by the list that begins at the thread's state, and has the frame's address in a register (3.8, 3.9).
    Held,
    /// Each call has a `CFrame` on its stack, with the call before at `before`, and executes one frame, by the list that begins at `frame` of
    /// the thread's state (3.10).
    Single { frame: u64, before: u64 },
    /// Each call has a `_PyCFrame` on its stack, with the current frame and the call before, at these offsets; the frame that it began
    /// with has a byte that isn't 0 (3.11).
    Linked { current: u64, before: u64 },
    /// The same, but the call begins with a frame of its own, which is on its stack (3.12).
    Shimmed { current: u64 },
    /// The same without `_PyCFrame` (3.13 and later).
    Direct,
}

/// How a frame tells which instruction it executes, and a code object the lines of its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// By its first byte; `co_lnotab` (3.8, 3.9).
    Byte,
    /// By its number; pairs of PEP 626 (3.10).
    Number,
    /// By its address, where code objects have their instructions at this offset; a table of locations (3.11 and later).
    Address(u64),
}

/// Where the lines of a code object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    pub first_line: u64,
    pub file: u64,
    pub name: u64,
    pub qualified_name: u64,
    pub lines: u64,
    pub instructions: Instructions,
}

/// Offsets in bytes, each from the start of its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `PY_VERSION_HEX` without the micro version: 0x030b for 3.11.
    pub version: u16,
    /// `_PyRuntimeState.interpreters.head`.
    pub interpreters: u64,
    /// `PyInterpreterState.next` and `threads.head`.
    pub next_interpreter: u64,
    pub threads: u64,
    /// `PyThreadState.next`, `thread_id`, and the current frame or `_PyCFrame`.
    pub next_thread: u64,
    pub thread_id: u64,
    pub top: u64,
    pub calls: Calls,
    /// `_PyInterpreterFrame`: the code object, the frame of the caller, the instruction, whose frame it is.
    pub code: u64,
    pub caller: u64,
    pub instruction: u64,
    pub owner: u64,
    pub function: CodeLayout,
    /// Where the characters of a compact string begin: of ASCII alone, and of others.
    pub ascii: u64,
    pub compact: u64,
}

/// The versions that don't describe themselves.
const LAYOUTS: [Layout; 5] = [
    PYTHON_3_8,
    PYTHON_3_9,
    PYTHON_3_10,
    PYTHON_3_11,
    PYTHON_3_12,
];

const PYTHON_3_8: Layout = Layout {
    version: 0x0308,
    ..PYTHON_3_9
};

const PYTHON_3_9: Layout = Layout {
    version: 0x0309,
    interpreters: 32,
    next_interpreter: 0,
    threads: 8,
    next_thread: 8,
    thread_id: 176,
    top: 24,
    calls: Calls::Held,
    // `PyFrameObject`.
    code: 32,
    caller: 24,
    instruction: 104,
    // There is none: what is there doesn't matter.
    owner: 0,
    function: CodeLayout {
        first_line: 40,
        file: 104,
        name: 112,
        qualified_name: 112,
        lines: 120,
        instructions: Instructions::Byte,
    },
    ascii: 48,
    compact: 72,
};

const PYTHON_3_10: Layout = Layout {
    version: 0x030a,
    interpreters: 32,
    next_interpreter: 0,
    threads: 8,
    next_thread: 8,
    thread_id: 176,
    top: 48,
    calls: Calls::Single {
        frame: 24,
        before: 8,
    },
    // `PyFrameObject`.
    code: 32,
    caller: 24,
    instruction: 96,
    // There is none: what is there doesn't matter.
    owner: 0,
    function: CodeLayout {
        first_line: 40,
        file: 104,
        name: 112,
        qualified_name: 112,
        lines: 120,
        instructions: Instructions::Number,
    },
    ascii: 48,
    compact: 72,
};

const PYTHON_3_11: Layout = Layout {
    version: 0x030b,
    interpreters: 40,
    next_interpreter: 0,
    threads: 16,
    next_thread: 8,
    thread_id: 152,
    top: 56,
    calls: Calls::Linked {
        current: 8,
        before: 16,
    },
    code: 32,
    caller: 48,
    instruction: 56,
    // `is_entry`.
    owner: 68,
    function: CodeLayout {
        first_line: 72,
        file: 112,
        name: 120,
        qualified_name: 128,
        lines: 136,
        instructions: Instructions::Address(184),
    },
    ascii: 48,
    compact: 72,
};

const PYTHON_3_12: Layout = Layout {
    version: 0x030c,
    interpreters: 40,
    next_interpreter: 0,
    threads: 72,
    next_thread: 8,
    thread_id: 136,
    top: 56,
    calls: Calls::Shimmed { current: 0 },
    code: 0,
    caller: 8,
    instruction: 56,
    owner: 70,
    function: CodeLayout {
        first_line: 68,
        file: 112,
        name: 120,
        qualified_name: 128,
        lines: 136,
        instructions: Instructions::Address(192),
    },
    ascii: 40,
    compact: 56,
};

impl Layout {
    /// The layout of the program whose `_PyRuntime` begins with the bytes `runtime`, and whose `Py_Version` with `version`; before 3.11 it has none, and
    /// the name of its file, at `path`, tells. `None` if it is of a version that isn't known, or of a build without the GIL.
    pub fn find(runtime: &[u8], version: Option<&[u8]>, path: &str) -> Option<Self> {
        if runtime.starts_with(COOKIE) {
            return Self::described(runtime);
        }
        match version {
            Some(version) => Self::of_version(u32_at(version, 0)?),
            None => LAYOUTS.into_iter().find(|layout| layout.is_of(path)),
        }
    }

    /// The layout of a version (`PY_VERSION_HEX`) that doesn't describe itself.
    pub fn of_version(version: u32) -> Option<Self> {
        let mut layouts = LAYOUTS.into_iter();
        layouts.find(|layout| u32::from(layout.version) == version >> 16)
    }

    /// Whether the file at `path` has the name of this version's program or library.
    fn is_of(&self, path: &str) -> bool {
        let [major, minor] = self.version.to_be_bytes();
        let program = format!("python{major}.{minor}");
        let name = path.rsplit('/').next().unwrap_or(path);
        name == program || name.starts_with(&format!("lib{program}.so"))
    }

    /// The layout that the bytes of `_Py_DebugOffsets` describe.
    fn described(offsets: &[u8]) -> Option<Self> {
        let word = |index: usize| u64_at(offsets, index * 8);
        let version = u16::try_from(word(1)? >> 16).ok()?;
        let is_without_gil = word(2)? != 0;
        let mut known = DESCRIPTIONS.iter();
        let places = known.find(|places| places.version == version)?;
        // What is the same in all versions is where it should be.
        let is_sound = word(places.text - 1)? == TEXT_LENGTH;
        if is_without_gil || !is_sound {
            return None;
        }
        let at = |index| word(index).filter(|offset| *offset < MAX_OFFSET);
        let field = |index| word(index).filter(|offset| *offset < MAX_FIELD);
        let (frame, code) = (places.frame, places.code);
        Some(Self {
            version,
            interpreters: at(5)?,
            next_interpreter: at(8)?,
            threads: at(9)?,
            next_thread: at(places.next_thread)?,
            top: at(places.top)?,
            thread_id: at(places.thread_id)?,
            calls: Calls::Direct,
            caller: field(frame + 1)?,
            code: field(frame + 2)?,
            instruction: field(frame + 3)?,
            owner: field(frame + 5)?,
            function: CodeLayout {
                file: field(code + 1)?,
                name: field(code + 2)?,
                qualified_name: field(code + 3)?,
                lines: field(code + 4)?,
                first_line: field(code + 5)?,
                instructions: Instructions::Address(field(code + 9)?),
            },
            ascii: field(places.text)?,
            // Two words follow in `PyCompactUnicodeObject`: `utf8_length` and `utf8`.
            compact: field(places.text)? + 16,
        })
    }
}

/// `PyASCIIObject.length`.
const TEXT_LENGTH: u64 = 16;

/// Where `_Py_DebugOffsets` of a version has what differs between versions: numbers of its words.
struct Description {
    version: u16,
    /// `thread_state.next`, `current_frame` and `thread_id`.
    next_thread: usize,
    top: usize,
    thread_id: usize,
    /// The first words of `interpreter_frame` and `code_object`.
    frame: usize,
    code: usize,
    /// `unicode_object.asciiobject_size`, which comes after `length`.
    text: usize,
}

const DESCRIPTIONS: [Description; 3] = [
    Description {
        version: 0x030d,
        next_thread: 21,
        top: 23,
        thread_id: 24,
        frame: 28,
        code: 34,
        text: 70,
    },
    Description {
        version: 0x030e,
        next_thread: 24,
        top: 26,
        thread_id: 27,
        frame: 31,
        code: 39,
        text: 80,
    },
    Description {
        version: 0x030f,
        next_thread: 24,
        top: 26,
        thread_id: 30,
        frame: 39,
        code: 47,
        text: 92,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_their_tables() {
        let layout =
            |version: u32| Layout::find(&[], Some(&version.to_le_bytes()), "/usr/bin/python3.10");
        assert_eq!(layout(0x030b_02f0), Some(PYTHON_3_11));
        assert_eq!(layout(0x030c_01f0), Some(PYTHON_3_12));
        for version in [
            0,
            0x0207_12f0,
            0x0307_10f0,
            0x030d_00f0,
            0x030f_00a1,
            u32::MAX,
        ] {
            assert_eq!(layout(version), None, "{version:#x}");
        }
        assert_eq!(Layout::find(&[], Some(&[0xf0, 2]), ""), None);
        let named = |path| Layout::find(&[0; 64], None, path);
        assert_eq!(named("/usr/bin/python3.10"), Some(PYTHON_3_10));
        assert_eq!(named("/opt/libpython3.10.so.1.0"), Some(PYTHON_3_10));
        assert_eq!(named("/usr/bin/python3.9"), Some(PYTHON_3_9));
        assert_eq!(named("libpython3.8.so.1.0"), Some(PYTHON_3_8));
        for other in [
            "/opt/python3.10/bin/python3",
            "python3.7",
            "python3.9d",
            "python3.1",
        ] {
            assert_eq!(named(other), None, "{other}");
        }
    }

    /// The layout of a description in which every word is `offset`, besides the version and those of a sound one.
    fn describe(version: u64, without_gil: u64, offset: u64) -> Option<Layout> {
        let mut words = vec![offset; 120];
        words[..3].copy_from_slice(&[0, version, without_gil]);
        for description in DESCRIPTIONS {
            words[description.text - 1] = TEXT_LENGTH;
        }
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes[..8].copy_from_slice(COOKIE);
        Layout::find(&bytes, None, "")
    }

    #[test]
    fn programs_describe_themselves() {
        for (version, expected) in [
            (0x030d_00f0, 0x030d),
            (0x030e_08f0, 0x030e),
            (0x030f_02f0, 0x030f),
        ] {
            let found = describe(version, 0, 48).unwrap();
            assert_eq!((found.version, found.compact), (expected, 64));
            assert_eq!(describe(version, 1, 48), None, "a build without the GIL");
            assert_eq!(describe(version, 0, MAX_FIELD), None);
            assert_eq!(describe(version, 0, u64::MAX), None);
        }
        assert_eq!(describe(0x030c_00f0, 0, 48), None);
        assert_eq!(describe(0x0310_00a1, 0, 48), None);
        assert_eq!(Layout::find(COOKIE, None, ""), None, "cut off");
        let mut words = vec![48_u64; 120];
        words[1] = 0x030e_08f0;
        words[2] = 0;
        let mut unsound: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        unsound[..8].copy_from_slice(COOKIE);
        assert_eq!(Layout::find(&unsound, None, ""), None);
    }

    /// The words of Debian's builds of 3.14.8 and 3.15.2, from the fourth one to the length of strings' heads.
    #[test]
    fn builds_of_distributions_are_understood() {
        const PYTHON_3_14: [u64; 78] = [
            316_616, 784, 808, 225_864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16, 7784,
            0, 7800, 7792, 7992, 0, 832, 0, 8, 16, 72, 152, 160, 232, 32, 88, 8, 0, 56, 80, 74, 64,
            0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0, 16, 8, 416, 24, 88, 168, 40, 32,
            16, 40, 24, 16, 200, 24, 40, 32, 48, 32, 40, 24, 16, 32, 16, 24, 40, 16, 32, 64, 32,
            16, 40,
        ];
        const PYTHON_3_15: [u64; 90] = [
            346_568, 912, 936, 226_240, 7272, 7264, 7336, 7352, 7400, 7592, 7576, 7584, 16, 7736,
            0, 7752, 7744, 7944, 0, 888, 0, 8, 16, 72, 80, 88, 96, 176, 184, 256, 32, 36, 40, 136,
            288, 0, 88, 8, 0, 56, 80, 74, 64, 0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0,
            16, 8, 424, 24, 88, 168, 32, 288, 944, 888, 40, 32, 16, 40, 24, 16, 200, 24, 40, 32,
            48, 32, 40, 24, 16, 32, 16, 24, 40, 16, 32, 64, 32, 16, 40,
        ];
        let found = |version: u64, words: &[u64]| {
            let words = [
                &[u64::from_le_bytes(COOKIE.try_into().unwrap()), version, 0],
                words,
            ];
            let bytes: Vec<u8> = words
                .concat()
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect();
            Layout::find(&bytes, None, "").unwrap()
        };
        let older = found(0x030e_08f0, &PYTHON_3_14);
        let newer = found(0x030f_02f0, &PYTHON_3_15);
        for (layout, threads, thread_id) in [(older, 7344, 152), (newer, 7336, 176)] {
            let Layout {
                next_thread, top, ..
            } = layout;
            assert_eq!((layout.threads, layout.thread_id), (threads, thread_id));
            assert_eq!((next_thread, top), (8, 72));
            let Layout {
                code,
                caller,
                instruction,
                owner,
                ..
            } = layout;
            assert_eq!([code, caller, instruction, owner], [0, 8, 56, 74]);
            let expected = CodeLayout {
                first_line: 68,
                file: 112,
                name: 120,
                qualified_name: 128,
                lines: 136,
                instructions: Instructions::Address(208),
            };
            assert_eq!(layout.function, expected);
            assert_eq!((layout.ascii, layout.compact), (40, 56));
        }
    }
}
