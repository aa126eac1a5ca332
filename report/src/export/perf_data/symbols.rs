//! The folder with perf's symbol files.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kvmprof_recording::file::{create_folder, write_new_file};

use super::elf;
use crate::export::{ExportError, Library};
use crate::model::{CUT_SHORT, Frame, HALTED, ModuleId};
use crate::text::visible;

/// The kernel's functions.
pub const KALLSYMS: &str = "kallsyms";
/// A symbol that this export adds to the kernel. perf compares it with kallsyms.
pub const ANCHOR: (&str, u64) = ("kvmprof_anchor", 0xffff_ffff_fffe_0000);
/// Stands for the code of a halted vCPU. No code has such a high address.
pub const HALTED_AT: u64 = 0xffff_ffff_fffe_1000;
/// Stands for the missing part of a stack.
pub const CUT_SHORT_AT: u64 = 0xffff_ffff_fffe_2000;

/// Maximum number of files.
const MAX_FILES: usize = 65_536;
/// Maximum number of bytes of a function's name that perf reads from kallsyms (`KSYM_NAME_LEN`), with room for the rest
/// of the line.
const MAX_NAME: usize = 480;

/// A sampled function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its length up to the last sampled address, in bytes.
    pub length: u64,
}

/// Maximum length of a file's name, in characters.
const MAX_FILE_NAME: usize = 200;

type Functions = BTreeMap<u64, Function>;

/// A symbol file that stands for one of the guest's.
#[derive(Debug)]
struct FileSymbols {
    path: PathBuf,
    build_id: Vec<u8>,
    functions: Functions,
}

/// The symbol files of the kernel, of the guest's files, and of each process for its code that is in no file.
#[derive(Debug)]
pub struct SymbolFolder {
    path: PathBuf,
    kernel: Functions,
    guest_files: HashMap<ModuleId, FileSymbols>,
    // The current file of each process.
    processes: HashMap<i32, (PathBuf, Functions)>,
    files: usize,
}

impl SymbolFolder {
    /// Creates the folder at `path` if there is none. Only the user may read it, as all files that are made of recordings.
    pub fn create(path: &Path) -> io::Result<Self> {
        create_folder(path).map_err(named(path))?;
        Ok(Self {
            // perf may run in another directory.
            path: fs::canonicalize(path)?,
            kernel: Functions::new(),
            guest_files: HashMap::new(),
            processes: HashMap::new(),
            files: 0,
        })
    }

    /// Adds a function of the kernel.
    pub fn note_kernel(&mut self, frame: &Frame<'_>) {
        add(&mut self.kernel, frame, frame.address);
    }

    /// Adds the function of `frame`, which is in `library`. Returns the path of the library's file of symbols.
    pub fn note_file(
        &mut self,
        library: Library<'_>,
        frame: &Frame<'_>,
    ) -> Result<&Path, ExportError> {
        if !self.guest_files.contains_key(&library.0.id) {
            let number = self.next_file()?;
            let files = self.path.join("files");
            create_folder(&files).map_err(named(&files))?;
            let folder = files.join(number.to_string());
            create_folder(&folder).map_err(named(&folder))?;
            let file = FileSymbols {
                path: folder.join(file_name(library.name())),
                build_id: library.build_id_bytes(),
                functions: Functions::new(),
            };
            self.guest_files.insert(library.0.id, file);
        }
        let file = self.guest_files.get_mut(&library.0.id);
        let Some(file) = file else {
            return Ok(&self.path);
        };
        add(&mut file.functions, frame, frame.file_address);
        Ok(&file.path)
    }

    /// The file for code of process `pid` that is in none of the guest's files, and whether it is new: the process had none yet,
    /// or has executed another program.
    pub fn note_process(
        &mut self,
        pid: i32,
        name: &str,
        frame: Option<&Frame<'_>>,
    ) -> Result<(PathBuf, bool), ExportError> {
        let fits = match self.processes.get_mut(&pid) {
            Some((_, functions)) => frame.is_none_or(|frame| add(functions, frame, frame.address)),
            None => false,
        };
        if !fits {
            self.begin_file(pid, name)?;
        }
        let Some((path, functions)) = self.processes.get_mut(&pid) else {
            return Ok((self.path.clone(), false));
        };
        if let Some(frame) = frame.filter(|_| !fits) {
            add(functions, frame, frame.address);
        }
        Ok((path.clone(), !fits))
    }

    /// The paths and build ids of the files that stand for the guest's.
    pub fn build_ids(&self) -> Vec<(&Path, &[u8])> {
        let mut files: Vec<_> = (self.guest_files.values())
            .filter(|file| !file.build_id.is_empty())
            .map(|file| (file.path.as_path(), file.build_id.as_slice()))
            .collect();
        files.sort_unstable();
        files
    }

    fn next_file(&mut self) -> Result<usize, ExportError> {
        if self.files == MAX_FILES {
            return Err(ExportError::TooMany("programs"));
        }
        self.files += 1;
        Ok(self.files)
    }

    /// Begins a file for the process, which has just executed a program.
    fn begin_file(&mut self, pid: i32, name: &str) -> Result<(), ExportError> {
        let number = self.next_file()?;
        let name = plain(name, "");
        let mut path = self.path.join(format!("{name}-{pid}"));
        let mut functions = Functions::new();
        functions.insert(CUT_SHORT_AT, note(CUT_SHORT));
        if let Some((before, old)) = self.processes.remove(&pid) {
            write(&before, &elf::file(&old, &[]))?;
            path = self.path.join(format!("{name}-{pid}.{number}"));
        }
        self.processes.insert(pid, (path, functions));
        Ok(())
    }

    /// Writes all files.
    pub fn finish(mut self) -> io::Result<()> {
        for (path, functions) in self.processes.values() {
            write(path, &elf::file(functions, &[]))?;
        }
        for file in self.guest_files.values() {
            write(&file.path, &elf::file(&file.functions, &file.build_id))?;
        }
        self.kernel.insert(ANCHOR.1, note(ANCHOR.0));
        self.kernel.insert(HALTED_AT, note(HALTED));
        self.kernel.insert(CUT_SHORT_AT, note(CUT_SHORT));
        let mut text = String::new();
        for (begin, function) in &self.kernel {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{begin:016x} t {}", function.name);
        }
        write(&self.path.join(KALLSYMS), text.as_bytes())
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_new_file(path, bytes).map_err(named(path))
}

/// Adds the path to an error, because it isn't the one that the user has named.
fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn note(name: &str) -> Function {
    Function {
        name: name.to_owned(),
        length: 1,
    }
}

/// `name` with only those characters that every component of a path may have: letters, digits, and those of `more`.
fn plain(name: &str, more: &str) -> String {
    let characters = name.chars().map(|character| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
        other if more.contains(other) => other,
        _ => '_',
    });
    characters.take(MAX_FILE_NAME).collect()
}

/// The name of the file of symbols for the guest's file `name`.
fn file_name(name: &str) -> String {
    let name = plain(name, ".+");
    // The name must not be that of the folder itself or of its parent.
    if name.chars().all(|character| character == '.') {
        return format!("_{name}");
    }
    name
}

/// Adds the function of `frame`, which is at `address`; false if there is another one at its start.
fn add(functions: &mut Functions, frame: &Frame<'_>, address: u64) -> bool {
    let offset = frame.offset.unwrap_or_default();
    let begin = address.wrapping_sub(offset);
    let length = offset.saturating_add(1);
    let name = symbol_name(frame.name);
    let function = functions.entry(begin).or_insert_with(|| Function {
        name: name.clone(),
        length,
    });
    function.length = function.length.max(length);
    function.name == name
}

/// A name that is valid in a line of kallsyms.
fn symbol_name(name: &str) -> String {
    let mut name = visible(name);
    let end = (0..=MAX_NAME.min(name.len())).rev();
    let end = end.into_iter().find(|end| name.is_char_boundary(*end));
    name.truncate(end.unwrap_or_default());
    name
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::Arc;

    use super::*;
    use crate::model::{Code, ModuleKind, ModuleOf};

    fn frame(name: &str, address: u64, offset: u64) -> Frame<'static> {
        let code: &Code = Box::leak(Box::default());
        let name: &Arc<str> = Box::leak(Box::new(name.into()));
        Frame {
            name,
            address,
            offset: Some(offset),
            is_kernel: false,
            file_address: address,
            is_note: false,
            ..code.halted()
        }
    }

    #[test]
    fn another_program_has_a_file_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = SymbolFolder::create(&place.path().join("symbols")).unwrap();
        let main = frame("main", 0x1010, 0x10);
        let (first, is_new) = folder.note_process(7, "../a b", Some(&main)).unwrap();
        assert!(is_new && first.ends_with("symbols/___a_b-7"), "{first:?}");
        for more in [main, frame("main", 0x1080, 0x80), frame("sub", 0x2000, 0)] {
            let (path, is_new) = folder.note_process(7, "a", Some(&more)).unwrap();
            assert_eq!((&path, is_new), (&first, false));
        }
        let other = frame("other", 0x1000, 0);
        let (other, is_new) = folder.note_process(7, "a", Some(&other)).unwrap();
        assert!(is_new && other != first);
        folder.finish().unwrap();
        let file = fs::read(first).unwrap();
        for name in ["main", "sub", CUT_SHORT].map(str::as_bytes) {
            assert!(file.windows(name.len()).any(|part| part == name));
        }
        let files = fs::read_dir(place.path().join("symbols")).unwrap();
        assert_eq!(files.count(), 3);
    }

    #[test]
    fn files_are_for_their_user_alone_and_follow_no_link() {
        let place = tempfile::tempdir().unwrap();
        let precious = place.path().join("precious");
        fs::write(&precious, "old").unwrap();
        let symbols = place.path().join("symbols");
        let main = frame("main", 0x1010, 0x10);
        let library = Library(ModuleOf {
            id: ModuleId::default(),
            name: "",
            path: "",
            build_id: "",
            kind: ModuleKind::File,
        });
        let make = || {
            let mut folder = SymbolFolder::create(&symbols)?;
            folder.note_kernel(&main);
            let file = folder.note_file(library, &main).unwrap().to_owned();
            let (process, _) = folder.note_process(7, "a", Some(&main)).unwrap();
            folder.finish()?;
            Ok::<_, io::Error>([file, process, symbols.join(KALLSYMS)])
        };
        let paths = make().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        for path in &paths {
            assert_eq!(mode(path), 0o600, "{}", path.display());
            assert_eq!(mode(path.parent().unwrap()), 0o700, "{}", path.display());
        }
        // What others might have put in its place, were the folder not the user's own.
        for path in paths {
            fs::remove_file(&path).unwrap();
            symlink(&precious, &path).unwrap();
            let message = make().unwrap_err().to_string();
            assert!(message.contains(path.to_str().unwrap()), "{message}");
            fs::remove_file(&path).unwrap();
            make().unwrap();
        }
        fs::rename(&symbols, place.path().join("elsewhere")).unwrap();
        symlink(place.path().join("elsewhere"), &symbols).unwrap();
        assert!(make().is_err());
        assert_eq!(fs::read(precious).unwrap(), b"old");
    }

    #[test]
    fn files_stay_in_the_folder() {
        for (name, expected) in [
            ("libc.so.6", "libc.so.6"),
            ("..", "_.."),
            ("", "_"),
            ("a/../b c", "a_.._b_c"),
            ("libstdc++.so.6", "libstdc++.so.6"),
        ] {
            assert_eq!(file_name(name), expected);
        }
        assert_eq!(file_name(&"x".repeat(1000)).len(), MAX_FILE_NAME);
    }

    #[test]
    fn names_keep_to_their_lines() {
        assert_eq!(symbol_name("a\nb\tc"), "a�b�c");
        assert!(symbol_name(&"é".repeat(1000)).len() <= MAX_NAME);
    }
}
