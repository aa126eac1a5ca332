//! A kernel's symbols, by address and by name. All addresses are link-time addresses, without the slide.

use std::sync::OnceLock;

use kvmprof_abi::kallsyms::{is_function, is_variable};
use kvmprof_recording::elf::{MAX_NAMES_BYTES, bounded_name};

/// One symbol. Its name is a part of the table's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub address: u64,
    pub name_start: u32,
    pub name_length: u16,
    /// The type letter of nm(1).
    pub kind: u8,
}

/// A kernel's symbols.
#[derive(Debug)]
pub struct Symbols {
    /// Sorted by address.
    symbols: Vec<Symbol>,
    /// The indices of the functions among them, by address.
    functions: Vec<u32>,
    text: String,
    by_name: OnceLock<Vec<u32>>,
}

impl Symbols {
    pub(crate) fn new(mut symbols: Vec<Symbol>, text: String) -> Self {
        symbols.sort_by_key(|symbol| symbol.address);
        let functions = (0..)
            .zip(&symbols)
            .filter(|(_, symbol)| is_function(symbol.kind))
            .map(|(index, _)| index)
            .collect();
        Self {
            symbols,
            functions,
            text,
            by_name: OnceLock::new(),
        }
    }

    /// The symbols of an ELF symbol table: address, name, and whether each is a function. Long names are truncated, and
    /// symbols beyond a maximum of names are left out.
    pub(crate) fn from_elf<'a>(found: impl Iterator<Item = (u64, &'a str, bool)>) -> Self {
        let mut text = String::new();
        let mut symbols = Vec::new();
        for (address, name, function) in found {
            let name = bounded_name(name);
            let (Ok(name_start), Ok(name_length)) =
                (u32::try_from(text.len()), u16::try_from(name.len()))
            else {
                continue;
            };
            if text.len() + name.len() > MAX_NAMES_BYTES {
                break;
            }
            text.push_str(name);
            let kind = if function { b't' } else { b'd' };
            symbols.push(Symbol {
                address,
                name_start,
                name_length,
                kind,
            });
        }
        Self::new(symbols, text)
    }

    /// Subtracts `distance` from all addresses that are at least `start`.
    pub(crate) fn moved_down(self, start: u64, distance: u64) -> Self {
        let mut symbols = self.symbols;
        for symbol in &mut symbols {
            if symbol.address >= start {
                symbol.address = symbol.address.wrapping_sub(distance);
            }
        }
        Self::new(symbols, self.text)
    }

    /// The number of symbols.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// True if there are no symbols.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The link-time address of the symbol `name`; the lowest if there are several.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let by_name = self.by_name.get_or_init(|| self.sort_by_name());
        let first = by_name.partition_point(|index| self.name_at(*index) < name);
        let index = *by_name.get(first)?;
        (self.name_at(index) == name).then(|| self.symbols[index as usize].address)
    }

    /// The link-time addresses of several symbols, in one pass. Doesn't build the index of [`Symbols::address_of`].
    pub fn addresses_of<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let mut addresses = [None; N];
        for symbol in &self.symbols {
            let this = self.name(symbol);
            for (name, address) in names.iter().zip(&mut addresses) {
                if address.is_none() && *name == this {
                    *address = Some(symbol.address);
                }
            }
        }
        addresses
    }

    /// The function that contains link-time address `address`, and the offset of the address within it. Functions have
    /// no sizes here, so the last one has no end.
    pub fn function_at(&self, address: u64) -> Option<(&str, u64)> {
        let at = |index: &u32| self.symbols[*index as usize];
        let after = self
            .functions
            .partition_point(|index| at(index).address <= address);
        let symbol = at(self.functions.get(after.checked_sub(1)?)?);
        Some((self.name(&symbol), address - symbol.address))
    }

    /// The variable that contains link-time address `address`, and the offset of the address within it. Variables have
    /// no sizes here, so each ends at the next symbol, and the last one has no end.
    pub fn variable_at(&self, address: u64) -> Option<(&str, u64)> {
        let after = (self.symbols).partition_point(|symbol| symbol.address <= address);
        let begin = self.symbols.get(after.checked_sub(1)?)?.address;
        let first = (self.symbols).partition_point(|symbol| symbol.address < begin);
        let here = self.symbols.get(first..after)?;
        let variable = here.iter().find(|symbol| is_variable(symbol.kind))?;
        Some((self.name(variable), address - begin))
    }

    /// The functions, sorted by address: link-time address, type letter of nm(1), name.
    pub fn functions(&self) -> impl Iterator<Item = (u64, char, &str)> {
        self.functions.iter().map(|index| {
            let symbol = &self.symbols[*index as usize];
            (symbol.address, char::from(symbol.kind), self.name(symbol))
        })
    }

    /// The names that begin with `prefix`, sorted by address.
    pub fn names_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.symbols.iter().map(|symbol| self.name(symbol));
        names.filter(move |name| name.starts_with(prefix))
    }

    /// The lowest address above `address` that has a symbol.
    pub fn address_after(&self, address: u64) -> Option<u64> {
        let after = self
            .symbols
            .partition_point(|symbol| symbol.address <= address);
        self.symbols.get(after).map(|symbol| symbol.address)
    }

    fn name(&self, symbol: &Symbol) -> &str {
        let start = symbol.name_start as usize;
        self.text
            .get(start..start + usize::from(symbol.name_length))
            .unwrap_or_default()
    }

    fn name_at(&self, index: u32) -> &str {
        self.name(&self.symbols[index as usize])
    }

    fn sort_by_name(&self) -> Vec<u32> {
        let mut indices: Vec<u32> = (0..).take(self.symbols.len()).collect();
        // A stable sort keeps symbols with the same name in the order of their addresses.
        indices.sort_by(|left, right| self.name_at(*left).cmp(self.name_at(*right)));
        indices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols() -> Symbols {
        Symbols::from_elf(
            [
                (0x3000, "jiffies", false),
                (0x1000, "_text", true),
                (0x2000, "schedule", true),
                (0x2800, "twice", true),
                (0x2400, "twice", false),
            ]
            .into_iter(),
        )
    }

    /// A file of 1.6 MB can have 60,000 symbols with the same name of 64 KiB. A copy of the name for each would take 3.8 GB.
    #[test]
    fn names_that_symbols_share_take_a_bounded_amount_of_memory() {
        let long = "x".repeat(65_000);
        let symbols = Symbols::from_elf((0..100_000).map(|address| (address, long.as_str(), true)));
        assert_eq!(symbols.len(), MAX_NAMES_BYTES / 4096);
        assert_eq!(symbols.text.len(), MAX_NAMES_BYTES);
    }

    #[test]
    fn looks_up_by_name() {
        let symbols = symbols();
        assert_eq!(symbols.len(), 5);
        assert_eq!(symbols.address_of("schedule"), Some(0x2000));
        assert_eq!(symbols.address_of("twice"), Some(0x2400));
        assert_eq!(symbols.address_of("sched"), None);
        assert_eq!(symbols.address_of("zzz"), None);
        assert_eq!(
            symbols.addresses_of(["twice", "zzz", "_text"]),
            [Some(0x2400), None, Some(0x1000)]
        );
    }

    #[test]
    fn finds_the_variable_around_an_address() {
        let symbols = symbols();
        assert_eq!(symbols.variable_at(0x3000), Some(("jiffies", 0)));
        assert_eq!(symbols.variable_at(0x3018), Some(("jiffies", 0x18)));
        assert_eq!(symbols.variable_at(0x27ff), Some(("twice", 0x3ff)));
        // A function, and no symbol.
        assert_eq!(symbols.variable_at(0x2800), None);
        assert_eq!(symbols.variable_at(0xfff), None);
    }

    #[test]
    fn moves_the_addresses_above_a_bound() {
        let symbols = symbols().moved_down(0x2800, 0x500);
        let names = ["_text", "schedule", "jiffies"];
        assert_eq!(
            symbols.addresses_of(names),
            [Some(0x1000), Some(0x2000), Some(0x2b00)]
        );
        // The two symbols with the same name have changed places.
        assert_eq!(symbols.address_of("twice"), Some(0x2300));
        assert_eq!(symbols.function_at(0x2302), Some(("twice", 2)));
    }

    #[test]
    fn looks_up_by_address() {
        let symbols = symbols();
        assert_eq!(symbols.function_at(0x2010), Some(("schedule", 0x10)));
        // Data between functions counts as a part of the function before it.
        assert_eq!(symbols.function_at(0x2410), Some(("schedule", 0x410)));
        assert_eq!(symbols.function_at(0xfff), None);
        assert_eq!(symbols.address_after(0x2800), Some(0x3000));
        assert_eq!(symbols.address_after(0x3000), None);
        let functions: Vec<_> = symbols.functions().collect();
        assert_eq!(
            functions,
            [
                (0x1000, 't', "_text"),
                (0x2000, 't', "schedule"),
                (0x2800, 't', "twice")
            ]
        );
    }
}
