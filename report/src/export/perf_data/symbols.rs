//! The folder with perf's symbol files.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::elf;
use crate::export::{ExportError, Frame};
use crate::profile::{CUT_SHORT, HALTED};
use crate::text::visible;

/// The kernel's functions.
pub const KALLSYMS: &str = "kallsyms";
/// A symbol that this export adds to the kernel. perf compares it with kallsyms.
pub const ANCHOR: (&str, u64) = ("kvmprof_anchor", 0xffff_ffff_fffe_0000);
/// Stands for the code of a halted vCPU. No code has such a high address.
pub const HALTED_AT: u64 = 0xffff_ffff_fffe_1000;
/// Stands for the missing part of a stack.
pub const CUT_SHORT_AT: u64 = 0xffff_ffff_fffe_2000;

/// Maximum number of files of processes.
const MAX_FILES: usize = 65_536;
/// Maximum number of bytes of a function's name that perf reads from kallsyms (`KSYM_NAME_LEN`), with room for the rest
/// of the line.
const MAX_NAME: usize = 480;

/// A sampled function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Bytes up to its last sampled address.
    pub length: u64,
}

type Functions = BTreeMap<u64, Function>;

/// The symbol files of all processes and of the kernel.
#[derive(Debug)]
pub struct SymbolFolder {
    path: PathBuf,
    kernel: Functions,
    // The current file of each process.
    processes: HashMap<i32, (PathBuf, Functions)>,
    files: usize,
}

impl SymbolFolder {
    /// Creates the folder at `path` if there is none.
    pub fn create(path: &Path) -> io::Result<Self> {
        // For the user alone, as all that is made of recordings.
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self {
            // perf may run in another directory.
            path: fs::canonicalize(path)?,
            kernel: Functions::new(),
            processes: HashMap::new(),
            files: 0,
        })
    }

    /// Adds the functions of `frames` of process `pid` with name `name`. Returns the process's new file if it needs
    /// one.
    pub fn note(
        &mut self,
        pid: i32,
        name: &str,
        frames: &[Frame<'_>],
    ) -> Result<Option<PathBuf>, ExportError> {
        let mut new = None;
        // perf wants one function of an address: the one with the code.
        let known = |frame: &&Frame<'_>| frame.address != 0 && !frame.is_inlined;
        for frame in frames.iter().filter(known) {
            if frame.is_kernel {
                add(&mut self.kernel, frame);
                continue;
            }
            let fits = match self.processes.get_mut(&pid) {
                Some((_, functions)) => add(functions, frame),
                None => false,
            };
            if !fits {
                new = Some(self.begin_file(pid, name)?);
                if let Some((_, functions)) = self.processes.get_mut(&pid) {
                    add(functions, frame);
                }
            }
        }
        Ok(new)
    }

    /// Begins a file for the process, which has just executed a program.
    fn begin_file(&mut self, pid: i32, name: &str) -> Result<PathBuf, ExportError> {
        if self.files == MAX_FILES {
            return Err(ExportError::TooMany("programs"));
        }
        self.files += 1;
        let name: String = name
            .chars()
            .map(|character| match character {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
                _ => '_',
            })
            .collect();
        let mut path = self.path.join(format!("{name}-{pid}"));
        let mut functions = Functions::new();
        functions.insert(CUT_SHORT_AT, note(CUT_SHORT));
        if let Some((before, old)) = self.processes.remove(&pid) {
            fs::write(&before, elf::file(&old))?;
            path = self.path.join(format!("{name}-{pid}.{}", self.files));
        }
        self.processes.insert(pid, (path.clone(), functions));
        Ok(path)
    }

    /// Writes all files.
    pub fn finish(mut self) -> io::Result<()> {
        for (path, functions) in self.processes.values() {
            fs::write(path, elf::file(functions))?;
        }
        self.kernel.insert(ANCHOR.1, note(ANCHOR.0));
        self.kernel.insert(HALTED_AT, note(HALTED));
        self.kernel.insert(CUT_SHORT_AT, note(CUT_SHORT));
        let mut text = String::new();
        for (begin, function) in &self.kernel {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{begin:016x} t {}", function.name);
        }
        fs::write(self.path.join(KALLSYMS), text)
    }
}

fn note(name: &str) -> Function {
    Function {
        name: name.to_owned(),
        length: 1,
    }
}

/// Adds the function of `frame`; false if there is another one at its address.
fn add(functions: &mut Functions, frame: &Frame<'_>) -> bool {
    let offset = frame.offset.unwrap_or_default();
    let begin = frame.address.wrapping_sub(offset);
    let length = offset.saturating_add(1);
    let name = symbol_name(&frame.name);
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
    use super::*;

    fn frame(name: &str, address: u64, offset: u64) -> Frame<'_> {
        Frame {
            name: name.into(),
            address,
            offset: Some(offset),
            is_kernel: false,
            module: "[user]".into(),
            source: None,
            is_inlined: false,
            file_address: address,
        }
    }

    #[test]
    fn another_program_has_a_file_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = SymbolFolder::create(&place.path().join("symbols")).unwrap();
        let main = frame("main", 0x1010, 0x10);
        let first = folder
            .note(7, "../a b", std::slice::from_ref(&main))
            .unwrap();
        let first = first.unwrap();
        assert!(first.ends_with("symbols/___a_b-7"), "{first:?}");
        let more = [main, frame("main", 0x1080, 0x80), frame("sub", 0x2000, 0)];
        assert_eq!(folder.note(7, "a", &more).unwrap(), None);
        let other = folder.note(7, "a", &[frame("other", 0x1000, 0)]).unwrap();
        assert_ne!(other.unwrap(), first);
        folder.finish().unwrap();
        let file = fs::read(first).unwrap();
        for name in ["main", "sub", CUT_SHORT] {
            let name = name.as_bytes();
            assert!(file.windows(name.len()).any(|part| part == name));
        }
        assert_eq!(
            fs::read_dir(place.path().join("symbols")).unwrap().count(),
            3
        );
    }

    #[test]
    fn names_keep_to_their_lines() {
        assert_eq!(symbol_name("a\nb\tc"), "a�b�c");
        assert!(symbol_name(&"é".repeat(1000)).len() <= MAX_NAME);
    }
}
