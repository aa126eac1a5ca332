//! The image's symbols.

use std::sync::OnceLock;

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::ELF;

/// A symbol of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// Its guest address, physical and virtual.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    function: bool,
}

/// All symbols that have a size, by address.
fn symbols() -> &'static [Symbol] {
    static SYMBOLS: OnceLock<Vec<Symbol>> = OnceLock::new();
    SYMBOLS.get_or_init(|| {
        let Ok(file) = object::File::parse(ELF) else {
            return Vec::new();
        };
        let mut symbols: Vec<_> = file
            .symbols()
            .filter(|symbol| symbol.size() != 0)
            .filter_map(|symbol| {
                Some(Symbol {
                    name: symbol.name().ok()?,
                    address: symbol.address(),
                    size: symbol.size(),
                    function: symbol.kind() == SymbolKind::Text,
                })
            })
            .collect();
        symbols.sort_by_key(|symbol| symbol.address);
        symbols
    })
}

/// The image's symbol of this name; `None` if there is none with a size.
pub fn symbol(name: &str) -> Option<Symbol> {
    symbols().iter().find(|symbol| symbol.name == name).copied()
}

/// The function that a program counter lies in; `None` outside the image's functions.
pub fn function_at(pc: u64) -> Option<&'static str> {
    let symbols = symbols();
    let after = symbols.partition_point(|symbol| symbol.address <= pc);
    symbols[..after]
        .iter()
        .rev()
        .find(|symbol| symbol.function)
        .filter(|symbol| pc - symbol.address < symbol.size)
        .map(|symbol| symbol.name)
}

/// The image's bytes from a guest address on, to the end of its segment; `None` outside the image.
pub(crate) fn bytes_at(address: u64) -> Option<&'static [u8]> {
    let file = object::File::parse(ELF).ok()?;
    file.segments().find_map(|segment| {
        let offset = usize::try_from(address.checked_sub(segment.address())?).ok()?;
        segment.data().ok()?.get(offset..)
    })
}

/// The NUL-terminated text at a guest address, as it is in the image.
pub(crate) fn text_at(address: u64) -> Option<&'static str> {
    let text = bytes_at(address)?.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_any_address_within_them() {
        let compute = symbol("compute").unwrap();
        assert!(compute.function);
        for pc in compute.address..compute.address + compute.size {
            assert_eq!(function_at(pc), Some("compute"));
        }
        assert_ne!(function_at(compute.address - 1), Some("compute"));
        assert_ne!(function_at(compute.address + compute.size), Some("compute"));
    }

    #[test]
    fn addresses_outside_the_code_belong_to_no_function() {
        let data = symbol("kvmprof_truth").unwrap();
        for pc in [0, 0x1f_ffff, data.address, 0x10_0000_0000, u64::MAX] {
            assert_eq!(function_at(pc), None, "{pc:#x}");
        }
        assert_eq!(symbol("no such symbol"), None);
    }
}
