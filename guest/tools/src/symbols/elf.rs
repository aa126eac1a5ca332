//! The symbol table of an ELF file.

use std::fs::File;
use std::path::Path;

use object::read::{ReadCache, ReadCacheOps};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

use super::{Symbol, SymbolsError};

/// Maximum number of bytes of all names together. All symbols of a hostile file can have the same name, which is half of the file.
const MAX_NAMES: usize = 128 << 20;

/// Reads `.symtab`, without the rest of the file, which may be large.
pub(super) fn read_elf(file: File, path: &Path) -> Result<Vec<Symbol>, SymbolsError> {
    read(&ReadCache::new(file), path)
}

fn read<R: ReadCacheOps>(data: &ReadCache<R>, path: &Path) -> Result<Vec<Symbol>, SymbolsError> {
    let damaged = |source| SymbolsError::Elf {
        path: path.to_path_buf(),
        source,
    };
    let elf = object::File::parse(data).map_err(damaged)?;
    if elf.symbol_table().is_none() {
        return Err(SymbolsError::Stripped {
            path: path.to_path_buf(),
        });
    }
    let text: Vec<_> = elf
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .map(|section| section.index())
        .collect();
    let mut symbols = Vec::new();
    let mut names_bytes = 0;
    for symbol in elf.symbols() {
        // Assembly labels are text too, though they have no type.
        let in_text = symbol.section_index().is_some_and(|at| text.contains(&at));
        if !in_text || matches!(symbol.kind(), SymbolKind::Section | SymbolKind::File) {
            continue;
        }
        let name = symbol.name_bytes().map_err(damaged)?;
        // Empty names and the assembler's own labels are useless.
        if name.is_empty() || name.starts_with(b".L") {
            continue;
        }
        names_bytes += name.len();
        if names_bytes > MAX_NAMES {
            return Err(SymbolsError::TooLong {
                source_name: path.display().to_string(),
                limit: MAX_NAMES,
            });
        }
        symbols.push(Symbol {
            address: symbol.address(),
            name: String::from_utf8_lossy(name).into_owned(),
            global: symbol.is_global(),
        });
    }
    Ok(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_symbols_of_this_test_are_read() {
        let path = std::env::current_exe().unwrap();
        let symbols = read_elf(File::open(&path).unwrap(), &path).unwrap();
        let main = symbols.iter().find(|symbol| symbol.name == "main").unwrap();
        assert!(main.global && main.address != 0);
        // Data isn't text.
        assert!(!symbols.iter().any(|symbol| symbol.name == "environ"));
    }
}
