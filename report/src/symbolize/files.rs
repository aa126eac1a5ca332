//! The guest's files: the recording's data about them, and the host's copies.

use std::cell::OnceCell;
use std::sync::Arc;

use super::debug::DebugFile;
use super::functions::FunctionTable;
use super::machine_code::MachineCode;
use super::tables::{RecordedFile, module_name};
use crate::text::visible;
use kvmprof_recording::Sysroot;
use kvmprof_recording::elf;
use kvmprof_recording::file::{Mapping, Segment};

/// Maximum size of a file, in bytes, that functions are read from if the recording lacks them.
const MAX_FILE: u64 = 1 << 30;
/// The distributions' folder for debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// A file in which functions can be looked up.
#[derive(Debug)]
pub struct LoadedFile {
    /// The number that identifies it.
    pub number: u32,
    /// Its name.
    pub name: Arc<str>,
    /// Its executable segments.
    pub segments: Vec<Segment>,
    /// Its debug information.
    pub debug: Option<DebugFile>,
    /// Functions from the host's copy that the recording lacks.
    functions: FunctionTable,
    /// The host's copy, opened when its code is first needed; the inner `None` if there is none, or it is of another build.
    code: OnceCell<Option<MachineCode>>,
}

impl LoadedFile {
    /// The file of `mapping`; `recorded` is what the recording has of it. Problems with the host's copy are added to
    /// `notes`.
    pub fn load(
        number: u32,
        mapping: &Mapping,
        recorded: Option<&RecordedFile>,
        sysroot: Option<&Sysroot>,
        notes: &mut Vec<String>,
    ) -> Self {
        let mut file = Self {
            number,
            name: visible(module_name(&mapping.file)).into(),
            segments: recorded.map_or_else(Vec::new, |recorded| recorded.info().segments.clone()),
            debug: None,
            functions: FunctionTable::default(),
            code: OnceCell::new(),
        };
        if let Some(sysroot) = sysroot
            && mapping.file.starts_with('/')
        {
            let id = recorded.map_or("", |recorded| recorded.info().build_id.as_str());
            file.debug = debug_file(sysroot, &mapping.file, id, notes);
            if recorded.is_none() {
                file.read_functions(sysroot, &mapping.file);
            }
        }
        file
    }

    /// The code of the host's copy of the file of `mapping`, which `recorded` is about.
    pub fn code(
        &self,
        mapping: &Mapping,
        recorded: Option<&RecordedFile>,
        sysroot: &Sysroot,
    ) -> Option<&MachineCode> {
        let code = self.code.get_or_init(|| {
            let file = sysroot.file(&mapping.file).ok()?;
            let code = MachineCode::of(&file).ok()?;
            let id = recorded.map_or("", |recorded| recorded.info().build_id.as_str());
            (id.is_empty() || id == code.build_id).then_some(code)
        });
        code.as_ref()
    }

    fn read_functions(&mut self, sysroot: &Sysroot, path: &str) {
        let bytes = sysroot.file(path).and_then(|file| {
            use std::io::Read;
            let mut bytes = Vec::new();
            file.take(MAX_FILE).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        if let Some(parsed) = bytes.ok().and_then(|bytes| elf::parse(&bytes).ok()) {
            let functions = parsed.functions.iter();
            let functions = functions
                .map(|function| (function.address, function.length, function.name.as_str()));
            self.functions = FunctionTable::new(functions);
            self.segments = parsed.segments;
        }
    }

    /// The function at `address` of the file: its name, which may be empty, and its begin.
    pub fn find<'a>(
        &'a self,
        recorded: Option<&'a RecordedFile>,
        address: u64,
    ) -> Option<(&'a str, u64)> {
        let debug = self.debug.as_ref();
        let named = debug.and_then(|debug| debug.functions.find(address));
        named
            .or_else(|| recorded?.functions().find(address))
            .or_else(|| self.functions.find(address))
    }

    /// The begin and the length in bytes of each function that `is_wanted` by its name.
    pub fn wanted(
        &self,
        recorded: Option<&RecordedFile>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Vec<(u64, u64)> {
        let tables = [
            self.debug.as_ref().map(|debug| &debug.functions),
            recorded.map(RecordedFile::functions),
            Some(&self.functions),
        ];
        let tables = tables.into_iter().flatten();
        let mut wanted: Vec<_> = tables.flat_map(|table| table.wanted(&is_wanted)).collect();
        wanted.sort_unstable();
        // Of functions with the same begin, the longest one.
        wanted.reverse();
        wanted.dedup_by_key(|(begin, _)| *begin);
        wanted.reverse();
        wanted
    }
}

/// The debug information of the guest's file at `path` with build id `id`; any build id matches an empty `id`.
fn debug_file(
    sysroot: &Sysroot,
    path: &str,
    id: &str,
    notes: &mut Vec<String>,
) -> Option<DebugFile> {
    let by_id = by_build_id(id);
    let beside = format!("{DEBUG_FOLDER}{path}.debug");
    let mut symbols_alone = None;
    for candidate in by_id.as_deref().into_iter().chain([beside.as_str(), path]) {
        let Ok(file) = sysroot.file(candidate) else {
            continue;
        };
        let supplement = |path: &[u8], id: &str| supplement(sysroot, path, id);
        let Ok(debug) = DebugFile::read(&file, supplement) else {
            continue;
        };
        if !id.is_empty() && debug.build_id != id {
            let found = match debug.build_id.as_str() {
                "" => "none",
                found => found,
            };
            notes.push(format!(
                "{} is not the file of the recording, and not used: its build id is {found}, the recorded one {}",
                visible(&sysroot.shown(candidate).display().to_string()),
                visible(id)
            ));
            continue;
        }
        if debug.has_lines() {
            return Some(debug);
        }
        symbols_alone = symbols_alone.or_else(|| (!debug.functions.is_empty()).then_some(debug));
    }
    symbols_alone
}

/// The path of the debug file with build id `id`
/// (<https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>).
fn by_build_id(id: &str) -> Option<String> {
    let is_id = id.len() > 2 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| format!("{DEBUG_FOLDER}/.build-id/{}/{}.debug", &id[..2], &id[2..]))
}

/// The file that a debug file shares information with.
fn supplement(sysroot: &Sysroot, path: &[u8], id: &str) -> Option<std::fs::File> {
    let by_id = by_build_id(id).and_then(|path| sysroot.file(&path).ok());
    by_id.or_else(|| {
        // It is absolute, or relative to a file in `.build-id/xx`.
        let path = String::from_utf8_lossy(path);
        let name = path.rsplit("../").next()?;
        let below = sysroot.file(&format!("{DEBUG_FOLDER}/{name}"));
        below.or_else(|_| sysroot.file(&path)).ok()
    })
}
