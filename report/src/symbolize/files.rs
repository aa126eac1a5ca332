//! The guest's files: the recording's data about them, and the host's copies.

use std::cell::OnceCell;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use super::debug::DebugFile;
use super::debug_files::DebugFiles;
use super::functions::FunctionTable;
use super::host_copy::{self, HostCopy};
use super::machine_code::{self, MachineCode};
use super::notes::Notes;
use super::split::SplitFiles;
use super::tables::{RecordedFile, module_name};
use crate::text::visible;
use kvmprof_recording::Sysroot;
use kvmprof_recording::elf::Mismatch;
use kvmprof_recording::file::{Mapping, Segment};

/// The distributions' folder for debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// Where the guest's files and their debug files are looked for.
#[derive(Clone, Debug, Default)]
pub struct FileSources {
    /// A folder with the guest's files.
    pub sysroot: Option<Rc<Sysroot>>,
    /// Further debug files.
    pub debug_files: Option<Rc<dyn DebugFiles>>,
    /// Receives warnings about files that aren't used.
    pub notes: Rc<Notes>,
}

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
    /// The host's copy, opened when it is first needed; the inner `None` if there is none that is proven to be the recorded file.
    copy: OnceCell<Option<HostCopy>>,
    code: OnceCell<Option<MachineCode>>,
}

impl LoadedFile {
    /// The file of `mapping`; `recorded` is what the recording has of it. `sources` is `None` if only the recording is to be used.
    pub fn load(
        number: u32,
        mapping: &Mapping,
        recorded: Option<&RecordedFile>,
        sources: Option<&FileSources>,
    ) -> Self {
        let mut file = Self {
            number,
            name: visible(module_name(&mapping.file)).into(),
            segments: recorded.map_or_else(Vec::new, |recorded| recorded.info().segments.clone()),
            debug: None,
            functions: FunctionTable::default(),
            copy: OnceCell::new(),
            code: OnceCell::new(),
        };
        if let Some(sources) = sources
            && mapping.file.starts_with('/')
        {
            let search = Search {
                sources,
                path: &mapping.file,
                recorded,
            };
            file.debug = search.debug_file(&file.copy);
            if recorded.is_some_and(|recorded| recorded.has_no_functions())
                && let Some(copy) = search.copy(&file.copy)
            {
                file.functions = copy.functions();
            }
        }
        file
    }

    /// The code of the host's copy of the file of `mapping`, which `recorded` is about.
    pub fn code(
        &self,
        mapping: &Mapping,
        recorded: Option<&RecordedFile>,
        sources: &FileSources,
    ) -> Option<&MachineCode> {
        let search = Search {
            sources,
            path: &mapping.file,
            recorded,
        };
        let code = self.code.get_or_init(|| {
            let copy = search.copy(&self.copy)?;
            let code = MachineCode::of(&copy.file).ok()?;
            if !code.is_whole {
                let path = search.path_on_host(&mapping.file);
                sources.notes.add(machine_code::incomplete(&path));
            }
            Some(code)
        });
        code.as_ref()
    }

    /// The function at `address` of the file: its name, which may be empty, and its start.
    pub fn find<'a>(
        &'a self,
        recorded: Option<&'a RecordedFile>,
        address: u64,
    ) -> Option<(&'a str, u64)> {
        let debug = self.debug.as_ref();
        let named = debug.and_then(|debug| debug.functions.find(address));
        let recorded = recorded.and_then(|recorded| recorded.functions().find(address));
        match (named, recorded) {
            // Of the names of one function the recorder has chosen the best.
            (Some((_, begin)), Some((name, recorded))) if recorded >= begin && !name.is_empty() => {
                Some((name, recorded))
            }
            (named, recorded) => named.or(recorded).or_else(|| self.functions.find(address)),
        }
    }

    /// The start and the length in bytes of each function that `is_wanted` by its name.
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

/// Looks for a guest's file and its debug information on the host.
struct Search<'a> {
    sources: &'a FileSources,
    /// The file's path in the guest.
    path: &'a str,
    recorded: Option<&'a RecordedFile>,
}

impl Search<'_> {
    /// The host's copy, looked for once and kept in `copy`.
    fn copy<'c>(&self, copy: &'c OnceCell<Option<HostCopy>>) -> Option<&'c HostCopy> {
        let open = || {
            let sysroot = self.sources.sysroot.as_ref()?;
            let opened = HostCopy::open(sysroot, self.path, self.recorded)?;
            let refused = |mismatch: &_| self.refuse(&self.path_on_host(self.path), mismatch);
            opened.inspect_err(refused).ok()
        };
        copy.get_or_init(open).as_ref()
    }

    /// The file's debug information, from a file that is proven to belong to it.
    fn debug_file(&self, copy: &OnceCell<Option<HostCopy>>) -> Option<DebugFile> {
        let id = self.recorded.map_or("", |file| &file.info().build_id);
        let beside = format!("{DEBUG_FOLDER}{}.debug", self.path);
        let by_id = by_build_id(id).into_iter();
        let by_id = by_id.chain((!id.is_empty()).then_some(beside));
        let mut by_id = by_id.filter_map(|path| {
            let file = self.sources.sysroot.as_ref()?.file(&path).ok()?;
            self.with_build_id(&path, &self.path_on_host(&path), &file, id)
        });
        let mut without_dwarf = None;
        let mut is_enough = |debug: DebugFile| {
            if debug.has_dwarf() {
                return Some(debug);
            }
            if without_dwarf.is_none() && debug.is_useful() {
                without_dwarf = Some(debug);
            }
            None
        };
        by_id
            .find_map(&mut is_enough)
            .or_else(|| {
                let copy = self.copy(copy)?;
                let linked = self.linked(copy).and_then(&mut is_enough);
                linked.or_else(|| {
                    let shown = self.path_on_host(self.path);
                    let own = self.read(self.path, &shown, &copy.file)?;
                    is_enough(own)
                })
            })
            .or_else(|| self.debug_file_elsewhere(id).and_then(&mut is_enough))
            .or(without_dwarf)
    }

    /// The debug file that isn't in the sysroot.
    fn debug_file_elsewhere(&self, id: &str) -> Option<DebugFile> {
        let (path, file) = self.sources.elsewhere(id)?;
        let shown = visible(&path.display().to_string());
        self.with_build_id(self.path, &shown, &file, id)
    }

    /// The debug file `file`, if it has the build id `id`. It is at `path` of the guest, and `shown` is where it is on the host.
    fn with_build_id(&self, path: &str, shown: &str, file: &File, id: &str) -> Option<DebugFile> {
        let debug = self.read(path, shown, file)?;
        if debug.build_id == id {
            return Some(debug);
        }
        let found = match debug.build_id.as_str() {
            "" => "none".to_owned(),
            found => found.to_owned(),
        };
        let expected = id.to_owned();
        self.refuse(shown, &Mismatch::BuildId { found, expected });
        None
    }

    /// The debug file that `copy` names
    /// (<https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>).
    fn linked(&self, copy: &HostCopy) -> Option<DebugFile> {
        let sysroot = self.sources.sysroot.as_ref()?;
        let (name, crc32) = copy.debug_link()?;
        let (folder, _) = self.path.rsplit_once('/')?;
        let places = [
            format!("{folder}/{name}"),
            format!("{folder}/.debug/{name}"),
            format!("{DEBUG_FOLDER}{folder}/{name}"),
        ];
        let mut found = places.iter().filter_map(|path| {
            let file = sysroot.file(path).ok()?;
            let shown = self.path_on_host(path);
            if host_copy::crc32(&file).ok()? == crc32 {
                return self.read(path, &shown, &file);
            }
            self.sources.notes.add(format!(
                "{shown} is not used: it is not the debug file that {} names, whose CRC-32 is {crc32:08x}",
                self.path_on_host(self.path)
            ));
            None
        });
        found.next()
    }

    fn read(&self, path: &str, shown: &str, file: &File) -> Option<DebugFile> {
        let notes = &self.sources.notes;
        let supplement = |path: &[u8], id: &str| self.sources.supplement(path, id);
        let debug = DebugFile::read(file, supplement);
        let debug = debug.inspect_err(|error| {
            let error = visible(&error.to_string());
            notes.add(format!("{shown} is not used: {error}"));
        });
        let debug = debug.ok()?;
        if !debug.is_whole {
            notes.add(format!("{shown} has more functions than are read"));
        }
        let Some(sysroot) = &self.sources.sysroot else {
            return Some(debug);
        };
        let mut paths = vec![path.to_owned()];
        if path != self.path {
            paths.push(self.path.to_owned());
        }
        let split = SplitFiles::new(Rc::clone(sysroot), paths, Rc::clone(notes));
        Some(debug.with_split(split))
    }

    fn refuse(&self, shown: &str, mismatch: &Mismatch) {
        let what = match mismatch {
            Mismatch::Unknown => "is not used",
            Mismatch::BuildId { .. } | Mismatch::Code => {
                "is not the file of the recording, and not used"
            }
        };
        let mismatch = visible(&mismatch.to_string());
        self.sources
            .notes
            .add(format!("{shown} {what}: {mismatch}"));
    }

    /// The host's path of the guest's file at `path`.
    fn path_on_host(&self, path: &str) -> String {
        let shown = (self.sources.sysroot.as_ref()).map(|sysroot| sysroot.shown(path));
        visible(&shown.unwrap_or_else(|| path.into()).display().to_string())
    }
}

impl FileSources {
    /// The debug file with build id `id` that isn't in the sysroot, and where it is.
    fn elsewhere(&self, id: &str) -> Option<(PathBuf, File)> {
        let path = match self
            .debug_files
            .as_ref()
            .filter(|_| is_build_id(id))?
            .find(id)
        {
            Ok(path) => path?,
            Err(error) => {
                self.notes.add(visible(&error));
                return None;
            }
        };
        match File::open(&path) {
            Ok(file) => Some((path, file)),
            Err(error) => {
                let path = visible(&path.display().to_string());
                self.notes.add(format!("{path} is not used: {error}"));
                None
            }
        }
    }

    /// The file that a debug file shares information with.
    fn supplement(&self, path: &[u8], id: &str) -> Option<File> {
        let sysroot = self.sysroot.as_ref();
        let by_id = by_build_id(id).and_then(|path| sysroot?.file(&path).ok());
        let by_path = || {
            let sysroot = sysroot?;
            // It is absolute, or relative to a file in `.build-id/xx`.
            let path = String::from_utf8_lossy(path);
            let name = path.rsplit("../").next()?;
            let below = sysroot.file(&format!("{DEBUG_FOLDER}/{name}"));
            below.or_else(|_| sysroot.file(&path)).ok()
        };
        by_id
            .or_else(by_path)
            .or_else(|| Some(self.elsewhere(id)?.1))
    }
}

fn is_build_id(id: &str) -> bool {
    id.len() > 2 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The path of the debug file with build id `id`
/// (<https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>).
fn by_build_id(id: &str) -> Option<String> {
    is_build_id(id).then(|| format!("{DEBUG_FOLDER}/.build-id/{}/{}.debug", &id[..2], &id[2..]))
}
