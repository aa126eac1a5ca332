//! Frames of stacks, as they are shown.

use std::sync::Arc;

use super::code::{FrameKind, FunctionId, Line, ModuleId, ModuleKind, NameId, Range};
use crate::symbolize::{CodeAddress, MappingSet};

/// A frame of a stack, or a note in brackets that stands for frames. Functions that are inlined into each other have frames with the same address.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its function.
    pub function: FunctionId,
    /// The function's name, and its number; if the function is unknown, the address.
    pub name: &'a Arc<str>,
    /// See `name`.
    pub name_id: NameId,
    /// `[kernel]`, a kernel module in brackets, or a file's name; `[user]` when unknown; and its number.
    pub module: &'a Arc<str>,
    /// See `module`.
    pub module_id: NameId,
    /// Its kind.
    pub kind: FrameKind,
    /// Whether it is a kernel frame. Frames of the host count as such.
    pub is_kernel: bool,
    /// Whether it is inlined into the next frame.
    pub is_inlined: bool,
    /// Whether it is a note.
    pub is_note: bool,
    /// Its address; 0 for a note.
    pub address: u64,
    /// The address within its file; without a file, the address itself.
    pub file_address: u64,
    /// The offset from the function's start; `None` for inlined functions, and if the function is unknown.
    pub offset: Option<u64>,
    /// Its source file and line, if debug information has them.
    pub line: Option<Line>,
    /// The same with the file's name.
    pub source: Option<(&'a Arc<str>, u32)>,
    /// What has its code.
    pub code: ModuleOf<'a>,
    /// Where its process has the file of its code.
    pub mapping: Range,
    /// The segment of its code, by the file's own addresses.
    pub segment: Range,
    /// The mappings of its process.
    pub mappings: MappingSet,
}

impl Frame<'_> {
    /// Its address, to ask a resolver for more.
    pub fn asked(&self) -> CodeAddress {
        CodeAddress {
            mappings: self.mappings,
            address: self.address,
            is_kernel: self.is_kernel,
        }
    }
}

/// What has the code of frames.
#[derive(Clone, Copy, Debug)]
pub struct ModuleOf<'a> {
    /// Its number.
    pub id: ModuleId,
    /// Its name, as in reports.
    pub name: &'a str,
    /// The file's path in the guest; the name, if it is no file.
    pub path: &'a str,
    /// Its build id in hexadecimal; empty if it is unknown.
    pub build_id: &'a str,
    /// What it is.
    pub kind: ModuleKind,
}
