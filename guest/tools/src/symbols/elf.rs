//! The symbol table of an ELF file.

use std::fs::File;
use std::path::Path;

use object::read::{ReadCache, ReadCacheOps};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

use kvmprof_abi::kallsyms::CODE_ENDS;
use kvmprof_recording::elf::extents::{self, Begin, Extent};

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
    let mut table = Table::default();
    let mut text = Vec::new();
    for section in elf
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
    {
        text.push(section.index());
        let end = section.address().saturating_add(section.size());
        table.bounds.push(end);
    }
    let mut names_bytes = 0;
    for symbol in elf.symbols() {
        let is_listed = matches!(symbol.kind(), SymbolKind::Section | SymbolKind::File);
        let Some(section) = symbol.section_index().filter(|_| !is_listed) else {
            continue;
        };
        let name = symbol.name_bytes().map_err(damaged)?;
        // The assembler's own labels are within functions.
        if name.starts_with(b".L") {
            continue;
        }
        table.bounds.push(symbol.address());
        // Assembly labels are text too, though they have no type.
        if !text.contains(&section) {
            continue;
        }
        names_bytes += name.len();
        if names_bytes > MAX_NAMES {
            return Err(SymbolsError::TooLong {
                source_name: path.display().to_string(),
                limit: MAX_NAMES,
            });
        }
        let is_end = CODE_ENDS.iter().any(|end| end.as_bytes() == name);
        let name: &[u8] = if is_end { &[] } else { name };
        let extent = Extent {
            address: symbol.address(),
            size: symbol.size(),
        };
        let symbol = Symbol {
            address: symbol.address(),
            name: String::from_utf8_lossy(name).into_owned(),
            global: symbol.is_global(),
        };
        table.functions.push((extent, symbol));
    }
    Ok(table.into_symbols())
}

/// A file's functions.
#[derive(Default)]
struct Table {
    functions: Vec<(Extent, Symbol)>,
    /// The addresses of all symbols, and the ends of sections with code.
    bounds: Vec<u64>,
}

impl Table {
    /// The functions and their ends, as kvmprof has them of the running guest.
    fn into_symbols(mut self) -> Vec<Symbol> {
        self.bounds.sort_unstable();
        self.functions.sort_by_key(|(extent, _)| extent.address);
        let extents: Vec<Extent> = self.functions.iter().map(|(extent, _)| *extent).collect();
        let next = |address: u64| {
            let after = self.bounds.partition_point(|bound| *bound <= address);
            self.bounds.get(after).copied()
        };
        let begins = extents::begins(&extents, next).into_iter();
        let mut names: usize = 0;
        let symbols = begins.map(|(address, begin)| {
            let function = match begin {
                Begin::Function(index) => self.functions.get(index),
                Begin::Unknown => None,
            };
            let (name, global) = match function {
                Some((_, symbol)) => (symbol.name.clone(), symbol.global),
                None => (String::new(), false),
            };
            // The rest of a function has its name once more.
            names += name.len();
            Symbol {
                address,
                name: if names > 2 * MAX_NAMES {
                    String::new()
                } else {
                    name
                },
                global,
            }
        });
        symbols.collect()
    }
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
        // Its size tells where it ends.
        let after = symbols.iter().find(|symbol| symbol.address > main.address);
        assert!(after.is_some_and(|symbol| symbol.address - main.address < 4096));
        assert!(symbols.iter().any(|symbol| symbol.name.is_empty()));
        // Data isn't text.
        assert!(!symbols.iter().any(|symbol| symbol.name == "environ"));
    }
}
