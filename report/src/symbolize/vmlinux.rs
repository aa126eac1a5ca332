//! The debug file of the guest's kernel.

use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use super::debug::DebugFile;
use super::machine_code::{self, MachineCode};
use super::notes::Notes;
use super::split::SplitFiles;
use super::tables::Tables;
use super::{KERNEL_BEGIN, SymbolError};
use crate::text::visible;
use kvmprof_recording::Sysroot;
use kvmprof_recording::file::Contents;

/// The kernel's debug file.
#[derive(Debug)]
pub struct Vmlinux {
    /// Its functions and lines.
    pub debug: DebugFile,
    /// Its code; none of a file with debug information alone.
    pub code: MachineCode,
    /// The kernel's run-time addresses less the file's, modulo 2^64.
    pub slide: u64,
    /// It is the image of a guest that isn't Linux, with its programs in it.
    pub is_whole_guest: bool,
}

impl Vmlinux {
    /// The file at `path`, for the recording with `contents` and these `tables`.
    ///
    /// # Errors
    /// It can't be read, is of another kernel, or nothing tells how far the kernel was moved.
    pub fn open(
        path: &Path,
        contents: &Contents,
        tables: &Tables,
        notes: &Rc<Notes>,
    ) -> Result<Self, SymbolError> {
        let read = File::open(path).and_then(|file| {
            Ok((
                DebugFile::read(&file, |_, _| None)?,
                MachineCode::of(&file)?,
            ))
        });
        let (debug, code) = read.map_err(|source| SymbolError::Vmlinux {
            path: path.to_owned(),
            source,
        })?;
        let shown = visible(&path.display().to_string());
        if !debug.is_whole {
            notes.add(format!("{shown} has more functions than are read"));
        }
        if !code.is_whole {
            notes.add(machine_code::incomplete(&shown));
        }
        let debug = with_split(debug, path, notes);
        let kernel = contents.kernel.as_ref();
        let recorded = kernel.map_or("", |kernel| kernel.build_id.as_str());
        if !recorded.is_empty() && recorded != debug.build_id {
            return Err(SymbolError::OtherKernel {
                path: path.to_owned(),
                found: if debug.build_id.is_empty() {
                    "none".to_owned()
                } else {
                    debug.build_id.clone()
                },
                recorded: visible(recorded),
            });
        }
        let begins = (tables.kernel.address_of(KERNEL_BEGIN)).zip(debug.kernel_begin);
        let slide = begins.map(|(ran, linked)| ran.wrapping_sub(linked));
        let slide = slide.or_else(|| kernel.map(|kernel| kernel.slide));
        let is_other = kernel.is_none() && runs_as_linked(&debug, tables);
        let is_whole_guest = slide.is_none() && is_other;
        let slide = slide.or_else(|| is_other.then_some(0));
        match slide {
            Some(slide) => Ok(Self {
                debug,
                code,
                slide,
                is_whole_guest,
            }),
            None => Err(SymbolError::NoSlide(path.to_owned())),
        }
    }
}

/// `debug`, the file at `path`, whose units may be in files beside it.
fn with_split(debug: DebugFile, path: &Path, notes: &Rc<Notes>) -> DebugFile {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parts = absolute.parent().zip(absolute.file_name());
    let folder = parts.and_then(|(folder, name)| {
        let name = name.to_str()?.to_owned();
        Some((Sysroot::open(folder).ok()?, name))
    });
    match folder {
        Some((root, name)) => {
            debug.with_split(SplitFiles::new(Rc::new(root), vec![name], Rc::clone(notes)))
        }
        None => debug,
    }
}

/// Whether most recorded functions are where the file has them. Guests other than Linux run where they were linked to. Where none
/// is recorded, as with `--pid-at`, the file tells: Linux's has the symbol where its kernel begins.
fn runs_as_linked(debug: &DebugFile, tables: &Tables) -> bool {
    let begins = tables.kernel.wanted(|_| true);
    if begins.is_empty() {
        return debug.kernel_begin.is_none();
    }
    let is_there = |(begin, _): &&(u64, u64)| {
        let own = debug.functions.find(*begin);
        own.is_some_and(|(name, own)| own == *begin && tables.kernel.find(*begin) == Some(name))
    };
    let there = begins.iter().filter(is_there).count();
    there > 0 && there * 2 >= begins.len()
}
