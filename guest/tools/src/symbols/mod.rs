//! A kernel's text symbols, of the running guest or from a file.

mod elf;
mod error;
mod listing;
mod running;
mod slide;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use error::SymbolsError;
pub use listing::parse_listing;
pub use running::running_symbols;
pub use slide::{Slide, slide_of_table, slide_to};

/// A text symbol: a function, or a label within one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its address, in the kernel's address space.
    pub address: u64,
    /// Its name; empty at the end of one that isn't followed by another one.
    pub name: String,
    /// Whether it is visible outside its file; such names are preferred.
    pub global: bool,
}

/// Reads the text symbols of a file: an ELF file (`vmlinux`, a module) or a listing of nm(1)'s form
/// (`System.map`, a copy of `/proc/kallsyms`).
///
/// # Errors
/// The file can't be read, has another format, or has no text symbols.
pub fn read_namelist(path: &Path) -> Result<Vec<Symbol>, SymbolsError> {
    let unreadable = SymbolsError::read(path);
    let mut file = File::open(path).map_err(&unreadable)?;
    let mut start = Vec::new();
    Read::by_ref(&mut file)
        .take(4)
        .read_to_end(&mut start)
        .map_err(unreadable)?;
    let symbols = if start == *b"\x7fELF" {
        elf::read_elf(file, path)?
    } else {
        listing::read_file(start, file, path)?
    };
    if symbols.is_empty() {
        return Err(SymbolsError::NoText {
            source_name: path.display().to_string(),
        });
    }
    Ok(symbols)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_without_a_namelist_are_refused_with_a_message() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (contents, words) in [
            (&b""[..], "no text symbols"),
            (b"MZ\0\0 a bzImage", "neither an ELF file"),
            (b"Dear prfld,\n", "neither an ELF file"),
            (b"ffffffff81000000 T _text\noops\n", "Line 2"),
            (b"ffffffff81000000 D data\n", "no text symbols"),
            (b"\x7fELF and then nothing", "damaged"),
        ] {
            fs::write(&path, contents).unwrap();
            let error = read_namelist(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{contents:?}: {error}");
        }
        let error = read_namelist(folder.path()).unwrap_err();
        assert!(matches!(error, SymbolsError::Read { .. }));
    }
}
