//! The files of a recording's code as libraries of the Firefox Profiler.

use std::fmt::Write as _;

use kvmprof_recording::file::Mapping;
use serde_json::{Value, json};

use crate::export::ExportError;
use crate::export::interned::Interned;
use crate::profile::{Profile, Stack, StackFrame};
use crate::symbolize::{AddressLocation, KERNEL, module_name};
use crate::text::visible;

/// The base of the kernel's relative addresses: x86-64 kernels have their code and modules above it
/// (`Documentation/arch/x86/x86_64/mm.rst` of the Linux sources).
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// Number of bytes of a build id in a debug id, and in perf.
const DEBUG_ID: usize = 16;
const BUILD_ID: usize = 20;

/// A file, the kernel, or one of its modules.
#[derive(Clone, Default, Debug, PartialEq, Eq, Hash)]
pub struct Library {
    /// Its name, as in reports.
    pub name: String,
    /// The file's path in the guest; the name, if it is no file.
    path: String,
    /// Its build id in hexadecimal; empty if it is unknown.
    build_id: String,
    is_kernel: bool,
}

impl Library {
    /// The library with the code of `frame`, which is one of `stack`; `None` if no file is known to have it.
    pub fn of(profile: &Profile, stack: &Stack, frame: &StackFrame) -> Option<Self> {
        let tables = profile.resolver.tables();
        let without_file = |build_id: &str| Self {
            name: frame.frame.module.to_string(),
            path: frame.frame.module.to_string(),
            build_id: visible(build_id),
            is_kernel: frame.is_kernel,
        };
        match tables.locate(stack.mappings, frame.address, frame.is_kernel) {
            AddressLocation::Mapping(mapping) => Self::of_mapping(profile, mapping),
            _ if frame.is_kernel => {
                let kernel = profile.contents.kernel.as_ref();
                let kernel = kernel.filter(|_| *frame.frame.module == *KERNEL);
                Some(without_file(kernel.map_or("", |kernel| &kernel.build_id)))
            }
            // The image of a guest without mappings.
            AddressLocation::Kernel(_) => Some(without_file("")),
            AddressLocation::Unknown => None,
        }
    }

    /// The file of `mapping`; `None` if it is of none.
    pub fn of_mapping(profile: &Profile, mapping: &Mapping) -> Option<Self> {
        let tables = profile.resolver.tables();
        let build_id = tables.file(mapping).map(|file| &*file.info().build_id);
        is_file(mapping).then(|| Self {
            name: visible(module_name(&mapping.file)),
            path: visible(&mapping.file),
            build_id: visible(build_id.unwrap_or_default()),
            is_kernel: false,
        })
    }

    /// The build id's first bytes, as many as perf has; empty if it is unknown.
    pub fn build_id_bytes(&self) -> Vec<u8> {
        hexadecimal(&self.build_id, BUILD_ID)
    }

    /// The address of `frame` relative to the library; `None` if it is beyond what the format can have.
    pub fn relative(&self, frame: &StackFrame) -> Option<u32> {
        let base = if self.is_kernel { KERNEL_BASE } else { 0 };
        u32::try_from(frame.file_address.checked_sub(base)?).ok()
    }

    /// The debug id, by which symbol servers identify the library: 32 hexadecimal digits and a 0, from the first bytes of the build id, of
    /// which three groups are in the other order of bytes, as Breakpad and the Firefox Profiler have it
    /// (<https://docs.rs/debugid/latest/debugid/struct.DebugId.html>).
    pub fn breakpad_id(&self) -> String {
        let mut bytes = hexadecimal(&self.build_id, DEBUG_ID);
        bytes.resize(DEBUG_ID, 0);
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        let mut text = String::new();
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02X}");
        }
        text.push('0');
        text
    }

    /// The code id, by which the system identifies its file: the build id, if known.
    pub fn code_id(&self) -> Option<&str> {
        Some(self.build_id.as_str()).filter(|id| !id.is_empty())
    }

    /// The library in the form of the format.
    fn document(&self) -> Value {
        json!({
            "name": self.name,
            "path": self.path,
            "debugName": self.name,
            "debugPath": self.path,
            "breakpadId": self.breakpad_id(),
            "codeId": self.code_id(),
            "arch": null,
        })
    }
}

/// The first bytes, at most `limit`, of a number in hexadecimal digits; none if it is no such number.
pub fn hexadecimal(text: &str, limit: usize) -> Vec<u8> {
    let pairs = text.as_bytes().chunks_exact(2).take(limit);
    let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    bytes.collect::<Option<_>>().unwrap_or_default()
}

/// Whether the mapping is of a file that functions can be looked up in.
fn is_file(mapping: &Mapping) -> bool {
    mapping.binary.is_some() || !(mapping.file.is_empty() || mapping.file.starts_with('['))
}

/// The libraries of a profile, numbered.
#[derive(Debug)]
pub struct Libraries(Interned<Library>);

impl Libraries {
    /// No libraries.
    pub fn new() -> Self {
        Self(Interned::new("files"))
    }

    /// The number of `library`.
    pub fn number(&mut self, library: Library) -> Result<u32, ExportError> {
        Ok(self.0.number(library)?.0)
    }

    /// All libraries in the form of the format.
    pub fn into_documents(self) -> Vec<Value> {
        let libraries = self.0.into_ordered();
        libraries.iter().map(Library::document).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_ids_are_those_that_symbol_servers_have() {
        let library = |build_id: &str| Library {
            name: "a".to_owned(),
            path: "/a".to_owned(),
            build_id: build_id.to_owned(),
            is_kernel: false,
        };
        // The example of the crate debugid's documentation of how a build id becomes one.
        assert_eq!(
            library("e3f42b40c0b93a1efc0a6eb23ecb9a3a1234").breakpad_id(),
            "402BF4E3B9C01E3AFC0A6EB23ECB9A3A0"
        );
        for none in ["", "zz"] {
            assert_eq!(library(none).breakpad_id(), "0".repeat(33));
        }
        assert_eq!(
            library("0badc0de").breakpad_id(),
            format!("DEC0AD0B{}", "0".repeat(25))
        );
    }
}
