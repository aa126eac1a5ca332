//! A frame's address, and what it is resolved to.

use std::rc::Rc;
use std::sync::Arc;

use super::MappingSet;
use super::debug::SourceLine;
use super::former::Epoch;

/// The address of a frame to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodeAddress {
    /// The mappings of its process.
    pub mappings: MappingSet,
    /// Its address.
    pub address: u64,
    /// Whether it is a kernel frame.
    pub is_kernel: bool,
}

impl CodeAddress {
    /// A kernel frame, which needs no mappings, at a time that isn't known.
    pub fn in_kernel(address: u64) -> Self {
        Self {
            mappings: MappingSet::default().with_kernel(Epoch::ANY),
            address,
            is_kernel: true,
        }
    }
}

/// A function at an address. Functions that are inlined into each other share an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The demangled function; if it is unknown, the address, in the file if there is one (`libc.so.6+0x1234`).
    pub function: Arc<str>,
    /// `[kernel]`, a kernel module in brackets, a file's name, `[vdso]`, `[anon]` or `[user]`.
    pub module: Arc<str>,
    /// Its source line.
    pub source: Option<SourceLine>,
    /// Whether it is inlined into the next frame.
    pub is_inlined: bool,
    /// Whether it is code that the program generated at run time.
    pub is_generated: bool,
    /// Whether it is a function of a language, which an interpreter executes.
    pub is_of_language: bool,
}

/// The functions of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The functions, innermost first, at least one; all but the last one are inlined.
    pub frames: Rc<[Frame]>,
    /// The offset from the last one's begin; `None` if the function is unknown.
    pub offset: Option<u64>,
    /// The address within its file; without a file, the address itself.
    pub file_address: u64,
}

impl Frame {
    /// A frame without further information.
    pub(super) fn new(function: Arc<str>, module: Arc<str>) -> Self {
        Self {
            function,
            module,
            source: None,
            is_inlined: false,
            is_generated: false,
            is_of_language: false,
        }
    }

    /// A frame of a language, without a source line.
    pub(super) fn of_language(function: String, module: String) -> Self {
        Self {
            is_of_language: true,
            ..Self::new(function.into(), module.into())
        }
    }
}
