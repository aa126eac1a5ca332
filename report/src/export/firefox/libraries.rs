//! The files of a recording's code as libraries of the Firefox Profiler.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::model::{Frame, ModuleKind, ModuleOf};

/// The base of the kernel's relative addresses: x86-64 kernels have their code and modules above it
/// (`Documentation/arch/x86/x86_64/mm.rst` of the Linux sources).
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// Number of bytes of a build id in a debug id, and in perf.
const DEBUG_ID: usize = 16;
const BUILD_ID: usize = 20;

/// A file, the kernel, or one of its modules.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a>(pub ModuleOf<'a>);

impl<'a> Library<'a> {
    /// The library with the code of `frame`; `None` if no file is known to have it.
    pub fn of(frame: &Frame<'a>) -> Option<Self> {
        (frame.code.kind != ModuleKind::Nowhere).then_some(Self(frame.code))
    }

    /// The same with the address of `frame` relative to it; `None` if that is beyond what the format can have.
    pub fn at(frame: &Frame<'a>) -> Option<(Self, u32)> {
        let library = Self::of(frame)?;
        let base = match library.0.kind {
            ModuleKind::Kernel => KERNEL_BASE,
            _ => 0,
        };
        let address = u32::try_from(frame.file_address.checked_sub(base)?).ok()?;
        Some((library, address))
    }

    /// Its name, as in reports.
    pub fn name(&self) -> &'a str {
        self.0.name
    }

    /// The build id's first bytes, as many as perf has; empty if it is unknown.
    pub fn build_id_bytes(&self) -> Vec<u8> {
        hexadecimal(self.0.build_id, BUILD_ID)
    }

    /// The debug id, by which symbol servers identify the library: 32 hexadecimal digits and a 0, from the first bytes of the build id, of
    /// which three groups are in the other order of bytes, as Breakpad and the Firefox Profiler have it
    /// (<https://docs.rs/debugid/latest/debugid/struct.DebugId.html>).
    pub fn breakpad_id(&self) -> String {
        let mut bytes = hexadecimal(self.0.build_id, DEBUG_ID);
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
    pub fn code_id(&self) -> Option<&'a str> {
        Some(self.0.build_id).filter(|id| !id.is_empty())
    }

    /// The library in the form of the format.
    pub fn document(&self) -> Value {
        let ModuleOf { name, path, .. } = self.0;
        json!({
            "name": name,
            "path": path,
            "debugName": name,
            "debugPath": path,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModuleId;

    #[test]
    fn debug_ids_agree_with_symbol_servers() {
        fn library(build_id: &str) -> Library<'_> {
            Library(ModuleOf {
                id: ModuleId::default(),
                name: "a",
                path: "/a",
                build_id,
                kind: ModuleKind::File,
            })
        }
        let none = "0".repeat(33);
        for (build_id, expected) in [
            // The example of the crate debugid's documentation of how a build id becomes one.
            (
                "e3f42b40c0b93a1efc0a6eb23ecb9a3a1234",
                "402BF4E3B9C01E3AFC0A6EB23ECB9A3A0",
            ),
            ("", &none),
            ("zz", &none),
            ("0badc0de", &format!("DEC0AD0B{}", "0".repeat(25))),
        ] {
            assert_eq!(library(build_id).breakpad_id(), expected);
        }
    }
}
