//! A guest's image and its symbols.

use std::ops::Range;
use std::sync::OnceLock;

use object::{Object, ObjectSymbol, SymbolKind};

use crate::TruthError;

/// The bytes of an image, aligned so that they can be parsed in place.
#[repr(C, align(4096))]
pub struct PageAligned<T: ?Sized>(pub T);

/// The image of a guest with this crate's kernel: a static ELF64 executable. Its physical addresses are its link
/// addresses.
#[derive(Debug)]
pub struct Image {
    elf: &'static [u8],
    symbols: OnceLock<Vec<Symbol>>,
}

/// A symbol of an image.
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

impl Image {
    /// The image `elf`, built by `kvmprof-guest-builder`.
    pub const fn new(elf: &'static [u8]) -> Self {
        Self {
            elf,
            symbols: OnceLock::new(),
        }
    }

    /// The ELF file.
    pub const fn elf(&self) -> &'static [u8] {
        self.elf
    }

    /// All symbols with a size, by address.
    fn symbols(&self) -> &[Symbol] {
        self.symbols.get_or_init(|| {
            let Ok(file) = object::File::parse(self.elf) else {
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

    /// The symbol `name`; `None` if there is none with a size.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        let mut symbols = self.symbols().iter();
        symbols.find(|symbol| symbol.name == name).copied()
    }

    /// The guest-physical addresses of the object `name`.
    ///
    /// # Errors
    /// [`TruthError::NoSymbol`] if there is no such symbol.
    pub fn area(&self, name: &'static str) -> Result<Range<u64>, TruthError> {
        let symbol = self.symbol(name).ok_or(TruthError::NoSymbol(name))?;
        Ok(symbol.address..symbol.address + symbol.size)
    }

    /// The function at a program counter; `None` outside the image's functions.
    pub fn function_at(&self, pc: u64) -> Option<&'static str> {
        let symbols = self.symbols();
        let after = symbols.partition_point(|symbol| symbol.address <= pc);
        symbols[..after]
            .iter()
            .rev()
            .find(|symbol| symbol.function)
            .filter(|symbol| pc - symbol.address < symbol.size)
            .map(|symbol| symbol.name)
    }
}

#[cfg(test)]
mod tests {
    use crate::{function_at, symbol};

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
