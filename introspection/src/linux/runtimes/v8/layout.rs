//! Where V8 keeps what a stack consists of.
//!
//! A build of V8 has its own layout in constants for debuggers, `v8dbg_*` (`tools/gen-postmortem-metadata.py` of V8's source), which
//! Node.js exports. Those that are used here have been the same for years, besides the numbers of types; a build in which one differs is
//! refused. What has no constant is that of V8 10.2 and 11.3 without pointer compression (`src/objects/*.tq` of each version), and other
//! versions are refused.

use kvmprof_recording::elf;

use crate::bytes::i32_at;

/// Pointers to objects have this bit, small integers don't (`kHeapObjectTag`).
pub const TAG: u64 = 1;
/// The number of bits below a small integer's value (`kSmiShiftSize`, `kSmiTagSize`).
const INTEGER_SHIFT: u32 = 32;
/// `Map`: the number of the type of its objects, 16 bits.
pub const INSTANCE_TYPE: u64 = 12;

/// Where the frame of a function has its `JSFunction`, below the frame pointer. Its context is above that, or the number of its kind.
pub const FUNCTION: u64 = 16;
/// `JSFunction`.
pub const SHARED: usize = 24;

/// `SharedFunctionInfo`: its `ScopeInfo` or name, its script, the number of its parameters with the distance of its first token, and its
/// number in the script, which follows the flags.
pub mod shared {
    pub const SCOPE: usize = 16;
    pub const SCRIPT: usize = 32;
    pub const PARAMETERS: usize = 42;
    pub const LITERAL: usize = 52;
    pub const LENGTH: usize = 56;
}

/// `Script`: the text, the name, the number of lines before the text, and the script's number. The latter two have no constants: they are
/// behind `name` and `line_ends`.
pub mod script {
    pub const SOURCE: usize = 8;
    pub const NAME: usize = 16;
    pub const LINE_OFFSET: usize = 24;
    pub const NUMBER: usize = 64;
    pub const LENGTH: usize = 72;
}

/// `ScopeInfo`: words behind the map.
pub mod scope {
    pub const FLAGS: usize = 0;
    pub const LOCALS: usize = 2;
    /// The names and properties of local variables that a context has, and what the flags say.
    pub const VARIABLES: usize = 3;
    /// Number of local variables from which on their names are in a table of their own (`kScopeInfoMaxInlinedLocalNamesSize`).
    pub const INLINED: u64 = 75;

    /// The type of the scope (`ScopeType`), and that of functions.
    pub const TYPE: u64 = 15;
    pub const OF_FUNCTION: u64 = 2;
    /// `has_saved_class_variable_index`: a word.
    pub const HAS_CLASS: u64 = 1 << 10;
    /// `function_variable`: the function's name, and a word.
    pub const HAS_NAME: u64 = 3 << 12;
    /// `has_inferred_function_name`: a word.
    pub const HAS_INFERRED: u64 = 1 << 14;
}

/// Strings: their length, and what the representations have behind it.
pub mod string {
    pub const LENGTH: usize = 12;
    /// The first word: a part's parent, the first half, the string that stands for another one.
    pub const FIRST: usize = 16;
    pub const SECOND: usize = 24;
    /// Where characters begin that follow the head.
    pub const CHARACTERS: u64 = 16;

    /// Types of strings are below.
    pub const END: u16 = 128;
    pub const REPRESENTATION: u16 = 7;
    pub const SEQUENTIAL: u16 = 0;
    pub const CONS: u16 = 1;
    pub const EXTERNAL: u16 = 2;
    pub const SLICED: u16 = 3;
    pub const THIN: u16 = 5;
    pub const ONE_BYTE: u16 = 8;
    /// External strings without the address of their characters (`kUncachedExternalStringTag`).
    pub const UNCACHED: u16 = 16;
}

/// The constants whose values are known, without `v8dbg_`.
const EXPECTED: [(&str, i32); 30] = [
    ("class_JSFunction__shared__SharedFunctionInfo", 24),
    ("off_fp_context_or_frame_type", -8),
    ("off_fp_function", -16),
    ("SmiValueShift", 1),
    ("SmiShiftSize", 31),
    ("HeapObjectTag", 1),
    ("class_Map__instance_type__uint16_t", 12),
    ("class_SharedFunctionInfo__name_or_scope_info__Object", 16),
    (
        "class_SharedFunctionInfo__script_or_debug_info__HeapObject",
        32,
    ),
    (
        "class_SharedFunctionInfo__internal_formal_parameter_count__uint16_t",
        42,
    ),
    (
        "class_SharedFunctionInfo__raw_function_token_offset__int16_t",
        44,
    ),
    ("class_SharedFunctionInfo__flags__int", 48),
    ("class_Script__source__Object", 8),
    ("class_Script__name__Object", 16),
    ("class_Script__line_ends__Object", 56),
    ("class_String__length__int32_t", 12),
    ("class_SeqOneByteString__chars__char", 16),
    ("class_SeqTwoByteString__chars__char", 16),
    ("class_ConsString__first__String", 16),
    ("class_ConsString__second__String", 24),
    ("class_SlicedString__parent__String", 16),
    ("class_SlicedString__offset__SMI", 24),
    ("class_ThinString__actual__String", 16),
    ("class_ExternalString__resource__Object", 16),
    ("StringRepresentationMask", 7),
    ("StringEncodingMask", 8),
    ("OneByteStringTag", 8),
    ("FirstNonstringType", 128),
    ("scopeinfo_idx_ncontextlocals", 2),
    ("scopeinfo_idx_first_vars", 3),
];
/// `Version::major_` and `Version::minor_`, and the versions that are known.
const VERSION: [&str; 2] = [
    "_ZN2v88internal7Version6major_E",
    "_ZN2v88internal7Version6minor_E",
];
const KNOWN: [[i32; 2]; 2] = [[10, 2], [11, 3]];

/// What differs between versions: the numbers of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub shared: u16,
    pub script: u16,
    pub scope: u16,
    /// The types of frames whose code calls C++.
    pub exits: [u64; 2],
}

/// V8 10.2.
pub const NODE_18: Layout = Layout {
    shared: 257,
    script: 170,
    scope: 256,
    exits: [3, 22],
};
/// V8 11.3.
pub const NODE_20: Layout = Layout {
    shared: 262,
    script: 167,
    scope: 261,
    exits: [3, 25],
};

impl Layout {
    /// The layout of V8 in the ELF file with these contents. `None` if it has none, or another one than is known.
    pub fn find(contents: &[u8]) -> Option<Self> {
        let number = |name: &str| {
            let variable = elf::variable(contents, name)?;
            i32_at(variable.contents, 0)
        };
        Self::of_constants(number)
    }

    /// The layout by the values of variables.
    fn of_constants(number: impl Fn(&str) -> Option<i32>) -> Option<Self> {
        let constant = |name: &str| number(&format!("v8dbg_{name}"));
        let mut expected = EXPECTED.into_iter();
        let fits = expected.all(|(name, value)| constant(name) == Some(value));
        let [major, minor] = VERSION.map(&number);
        if !fits || !KNOWN.contains(&[major?, minor?]) {
            return None;
        }
        let of_type = |name| u16::try_from(constant(name)?).ok();
        let of_frame = |name| u64::try_from(constant(name)?).ok();
        Some(Self {
            shared: of_type("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE")?,
            script: of_type("type_Script__SCRIPT_TYPE")?,
            scope: of_type("type_ScopeInfo__SCOPE_INFO_TYPE")?,
            exits: [
                of_frame("frametype_ExitFrame")?,
                of_frame("frametype_BuiltinExitFrame")?,
            ],
        })
    }
}

/// The address of the object that `word` refers to. `None` if it is a small integer, or no address of the process.
pub fn object(word: u64) -> Option<u64> {
    (word & 3 == TAG && word >> 63 == 0).then(|| word - TAG)
}

/// The value of the small integer `word`. `None` if it is none.
pub fn integer(word: u64) -> Option<i32> {
    let value = u32::try_from(word >> INTEGER_SHIFT).ok()?;
    (word & (u64::MAX >> INTEGER_SHIFT) == 0).then(|| value.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of a build of this version, with one constant changed.
    fn found(version: [i32; 2], change: Option<(&str, Option<i32>)>) -> Option<Layout> {
        let types = [
            ("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE", 262),
            ("type_Script__SCRIPT_TYPE", 167),
            ("type_ScopeInfo__SCOPE_INFO_TYPE", 261),
            ("frametype_ExitFrame", 3),
            ("frametype_BuiltinExitFrame", 25),
        ];
        Layout::of_constants(|name| {
            if let Some(index) = VERSION.iter().position(|known| *known == name) {
                return Some(version[index]);
            }
            let name = name.strip_prefix("v8dbg_").unwrap();
            if let Some((_, value)) = change.filter(|(changed, _)| *changed == name) {
                return value;
            }
            let mut all = EXPECTED.iter().chain(&types);
            all.find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        })
    }

    #[test]
    fn builds_that_do_not_fit_are_refused() {
        assert_eq!(found([11, 3], None), Some(NODE_20));
        for version in [[9, 4], [10, 8], [11, 2], [12, 4], [0, 0], [-1, 3]] {
            assert_eq!(found(version, None), None, "{version:?}");
        }
        for (name, value) in EXPECTED {
            assert_eq!(found([11, 3], Some((name, Some(value + 8)))), None);
            assert_eq!(found([11, 3], Some((name, None))), None, "{name}");
        }
        for value in [None, Some(-1), Some(1 << 16)] {
            let name = "type_Script__SCRIPT_TYPE";
            assert_eq!(found([11, 3], Some((name, value))), None);
        }
        assert_eq!(Layout::find(b"\x7fELF"), None);
    }

    #[test]
    fn words_are_objects_or_integers() {
        assert_eq!(object(0x1009), Some(0x1008));
        for word in [0, 0x1008, 0x1000_0000_0000, 0x100b, u64::MAX] {
            assert_eq!(object(word), None, "{word:#x}");
        }
        assert_eq!(integer(7 << 32), Some(7));
        assert_eq!(integer(u64::MAX << 32), Some(-1));
        assert_eq!(integer(0x1009), None);
    }
}
