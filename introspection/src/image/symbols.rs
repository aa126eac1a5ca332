//! A kernel's symbols, by address and by name. All addresses are link-time addresses, without the slide.

use std::collections::HashSet;
use std::sync::OnceLock;

use kvmprof_abi::kallsyms::{CODE_ENDS, END_KIND, END_NAME, is_function, is_variable};
use kvmprof_recording::elf::extents::{self, Begin, Extent};
use kvmprof_recording::elf::{MAX_NAME, MAX_NAMES_BYTES, bounded_name};

use super::elf::{FileSymbol, SymbolKind};

/// The type letter of an absolute number, which may be anywhere among addresses.
const NUMBER: u8 = b'a';
/// Maximum number of functions around an address that a search looks at.
const MAX_NESTED: usize = 16;

/// One symbol. Its name is a part of the table's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub address: u64,
    /// Its size in bytes; 0 if it isn't known.
    pub size: u32,
    pub name_start: u32,
    pub name_length: u16,
    /// The type letter of nm(1).
    pub kind: u8,
}

/// A kernel's symbols.
#[derive(Clone, Debug)]
pub struct Symbols {
    /// Sorted by address.
    symbols: Vec<Symbol>,
    /// The indices of the functions among them, by address.
    functions: Vec<u32>,
    /// The ends of sections with code, sorted.
    code_ends: Vec<u64>,
    text: String,
    by_name: OnceLock<Vec<u32>>,
}

impl Symbols {
    pub(crate) fn new(mut symbols: Vec<Symbol>, text: String, code_ends: Vec<u64>) -> Self {
        symbols.sort_by_key(|symbol| symbol.address);
        let functions = (0..)
            .zip(&symbols)
            .filter(|(_, symbol)| is_function(symbol.kind))
            .map(|(index, _)| index)
            .collect();
        Self {
            symbols,
            functions,
            code_ends,
            text,
            by_name: OnceLock::new(),
        }
    }

    /// The symbols of an ELF symbol table, and the ends of the sections with code. Long names are truncated, characters that would end a
    /// word are replaced, and beyond a maximum of all names together symbols have none.
    pub fn from_table<'a>(
        found: impl Iterator<Item = FileSymbol<'a>>,
        code_ends: Vec<u64>,
    ) -> Self {
        let mut text = String::new();
        let mut symbols = Vec::new();
        for symbol in found {
            let name = word(symbol.name);
            let name = bounded_name(&name);
            let room = MAX_NAMES_BYTES - text.len();
            let name = if name.len() > room { "" } else { name };
            let Some((name_start, name_length)) = push_name(&mut text, name) else {
                continue;
            };
            symbols.push(Symbol {
                address: symbol.address,
                size: u32::try_from(symbol.size).unwrap_or(u32::MAX),
                name_start,
                name_length,
                kind: match symbol.kind {
                    SymbolKind::Function => b't',
                    SymbolKind::Variable => b'd',
                    SymbolKind::Number => NUMBER,
                },
            });
        }
        Self::new(symbols, text, code_ends)
    }

    /// Symbols without sizes: address, name, and whether each is a function.
    #[cfg(test)]
    pub(crate) fn from_elf<'a>(found: impl Iterator<Item = (u64, &'a str, bool)>) -> Self {
        let found = found.map(|(address, name, function)| FileSymbol {
            address,
            name: name.as_bytes(),
            kind: if function {
                SymbolKind::Function
            } else {
                SymbolKind::Variable
            },
            size: 0,
        });
        Self::from_table(found, Vec::new())
    }

    /// These symbols and those of `others` whose names they lack.
    pub(crate) fn with_others(mut self, others: &Self) -> Self {
        let names: HashSet<&str> = self.symbols.iter().map(|it| self.name(it)).collect();
        let lacking = others.symbols.iter().map(|it| (*it, others.name(it)));
        let lacking: Vec<_> = lacking.filter(|(_, name)| !names.contains(name)).collect();
        for (symbol, name) in lacking {
            let Some((name_start, name_length)) = push_name(&mut self.text, name) else {
                continue;
            };
            self.symbols.push(Symbol {
                name_start,
                name_length,
                ..symbol
            });
        }
        self.code_ends.extend(&others.code_ends);
        self.code_ends.sort_unstable();
        Self::new(self.symbols, self.text, self.code_ends)
    }

    /// Subtracts `distance` from all addresses that are at least `start`.
    pub(crate) fn moved_down(self, start: u64, distance: u64) -> Self {
        let down = |address: &mut u64| {
            if *address >= start {
                *address = address.wrapping_sub(distance);
            }
        };
        let (mut symbols, mut code_ends) = (self.symbols, self.code_ends);
        symbols
            .iter_mut()
            .for_each(|symbol| down(&mut symbol.address));
        code_ends.iter_mut().for_each(down);
        code_ends.sort_unstable();
        Self::new(symbols, self.text, code_ends)
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

    /// The function that contains link-time address `address`, and the offset of the address within it. A function without a size ends at
    /// the next symbol or at the end of its section.
    pub fn function_at(&self, address: u64) -> Option<(&str, u64)> {
        let at = |index: &u32| self.symbols[*index as usize];
        let after = self
            .functions
            .partition_point(|index| at(index).address <= address);
        let before = self.functions[..after]
            .iter()
            .rev()
            .take(MAX_NESTED)
            .map(at);
        let mut around = before.filter(|symbol| {
            let extent = symbol.extent();
            address == symbol.address
                || extents::end(extent, self.bound_after(symbol.address)) > address
        });
        let symbol = around.next()?;
        let name = self.name(&symbol);
        (!name.is_empty()).then_some((name, address - symbol.address))
    }

    /// The lowest address above `address` at which another symbol begins, or a section with code ends.
    fn bound_after(&self, address: u64) -> Option<u64> {
        let after = (self.symbols).partition_point(|symbol| symbol.address <= address);
        let mut symbols = self.symbols.get(after..)?.iter();
        let symbol = symbols.find(|symbol| !symbol.kind.eq_ignore_ascii_case(&NUMBER));
        let section = self.code_ends.partition_point(|end| *end <= address);
        let section = self.code_ends.get(section).copied();
        symbol
            .map(|symbol| symbol.address)
            .into_iter()
            .chain(section)
            .min()
    }

    /// The functions and the ends of code, as [`functions`](Self::functions) gives them, and of functions within functions the rest, too. All
    /// that is known ends at `end`, at the latest. Names have no blanks.
    pub fn lines(&self, end: u64) -> impl Iterator<Item = (u64, char, &str)> {
        let functions = self
            .functions
            .iter()
            .map(|index| &self.symbols[*index as usize]);
        let functions: Vec<&Symbol> = functions.filter(|symbol| symbol.address < end).collect();
        let extents: Vec<Extent> = functions.iter().map(|symbol| symbol.extent()).collect();
        let bound = |address| {
            self.bound_after(address)
                .map_or(end, |bound| bound.min(end))
        };
        let begins = extents::begins(&extents, |address| Some(bound(address)));
        begins.into_iter().map(move |(address, begin)| {
            let symbol = match begin {
                Begin::Function(index) => functions.get(index),
                Begin::Unknown => None,
            };
            let name = symbol.map_or("", |symbol| self.name(symbol));
            match symbol {
                Some(symbol) if is_word(name) && !CODE_ENDS.contains(&name) => {
                    (address, char::from(symbol.kind), name)
                }
                _ => (address, char::from(END_KIND), END_NAME),
            }
        })
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

impl Symbol {
    fn extent(&self) -> Extent {
        Extent {
            address: self.address,
            size: self.size.into(),
        }
    }
}

/// Appends `name` to the names of symbols: where it begins there, and its length, in bytes. `None` if it is beyond what a symbol can refer to.
fn push_name(text: &mut String, name: &str) -> Option<(u32, u16)> {
    let place = (text.len().try_into().ok()?, name.len().try_into().ok()?);
    text.push_str(name);
    Some(place)
}

/// `name` as one word of a line: characters that would end it are shown as `?`, as in a thread's name. Of a long name, a bit more than
/// [`bounded_name`] keeps, so that a character that is cut through isn't among that.
fn word(name: &[u8]) -> String {
    /// Bytes of a character in UTF-8 without the last.
    const PART: usize = 3;
    let name = name.get(..MAX_NAME + PART).unwrap_or(name);
    String::from_utf8_lossy(name).replace(ends_a_word, "?")
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && !name.contains(ends_a_word)
}

fn ends_a_word(letter: char) -> bool {
    letter.is_control() || letter.is_ascii_whitespace()
}

#[cfg(test)]
mod tests;
