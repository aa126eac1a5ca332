//! The functions of the guest's kernel and its modules, by address.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use kvmprof_abi::kallsyms::KernelSymbol;

/// Assumed length of the last function of the kernel or a module, in bytes: kallsyms has no lengths.
const LAST: u64 = 64 << 10;
/// The module name of the kernel itself.
pub const KERNEL: &str = "[kernel]";

/// Functions sorted by address.
#[derive(Clone, Debug)]
pub struct Symbols {
    functions: Vec<Function>,
    /// The kernel, then its modules.
    modules: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    begin: u64,
    name: String,
    module: usize,
    /// Whether it is the last one of its range of code: what follows is unknown.
    is_last: bool,
}

/// The function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// Its name, as mangled as in the kernel's table.
    pub name: &'a str,
    /// Its module in brackets, or [`KERNEL`].
    pub module: &'a Arc<str>,
    /// The offset from the function's begin.
    pub offset: u64,
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            functions: Vec::new(),
            modules: vec![KERNEL.into()],
        }
    }
}

impl Symbols {
    /// Reads the form of `/proc/kallsyms`: lines of address, type letter, name, and a module's name in brackets. An
    /// empty line ends a range of code. Other lines are ignored.
    pub fn parse(text: &str) -> Self {
        let mut symbols = Self::default();
        symbols.add(text);
        symbols
    }

    /// Adds the functions of `text`. They replace older ones that they overlap: a module was loaded at the address of
    /// an earlier one.
    pub fn add(&mut self, text: &str) {
        let mut numbers: HashMap<Arc<str>, usize> = self.modules.iter().cloned().zip(0..).collect();
        let mut added = Vec::new();
        let mut stretch = Vec::new();
        for line in text.lines() {
            if line.is_empty() {
                end_stretch(&mut stretch, &mut added);
            }
            let Some(symbol) = KernelSymbol::parse(line.as_bytes()) else {
                continue;
            };
            let module = symbol.module.map_or(0, |module| {
                let module: Arc<str> = String::from_utf8_lossy(module).into();
                *numbers.entry(Arc::clone(&module)).or_insert_with(|| {
                    self.modules.push(module);
                    self.modules.len() - 1
                })
            });
            stretch.push(Function {
                begin: symbol.address,
                name: String::from_utf8_lossy(symbol.name).into_owned(),
                module,
                is_last: false,
            });
        }
        end_stretch(&mut stretch, &mut added);
        let runs = runs(&added);
        self.functions.retain(|function| {
            let after = runs.partition_point(|run| *run.start() <= function.begin);
            let run = after.checked_sub(1).and_then(|index| runs.get(index));
            !run.is_some_and(|run| run.contains(&function.begin))
        });
        self.functions.append(&mut added);
        self.functions.sort_by_key(|function| function.begin);
    }

    /// The name of the function at `address`.
    pub fn find(&self, address: u64) -> Option<&str> {
        self.locate(address).map(|found| found.name)
    }

    /// The function at `address`.
    pub fn locate(&self, address: u64) -> Option<Found<'_>> {
        let after = (self.functions).partition_point(|function| function.begin <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        let offset = address - function.begin;
        let is_followed = !function.is_last
            && (self.functions.get(after)).is_some_and(|next| next.module == function.module);
        (is_followed || offset < LAST).then(|| Found {
            name: &function.name,
            module: &self.modules[function.module],
            offset,
        })
    }

    /// The begin of the kernel's function `name`.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let mut functions = self.functions.iter();
        let function = functions.find(|function| function.module == 0 && function.name == name)?;
        Some(function.begin)
    }

    /// The begin and the end of each function that `is_wanted` by its name.
    pub(super) fn wanted(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
        let numbered = self.functions.iter().enumerate();
        let wanted = numbered.filter(|(_, function)| is_wanted(&function.name));
        wanted
            .map(|(index, function)| (function.begin, self.end_of(index, function)))
            .collect()
    }

    /// Where all functions begin and end; `None` if there are none.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        let last = self.functions.len().checked_sub(1)?;
        let end = self.end_of(last, self.functions.get(last)?);
        Some((self.functions.first()?.begin, end))
    }

    /// The end of the function with this index.
    fn end_of(&self, index: usize, function: &Function) -> u64 {
        let next = self.functions.get(index + 1);
        let next = next.filter(|next| !function.is_last && next.module == function.module);
        next.map_or(function.begin.saturating_add(LAST), |next| next.begin)
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// True if there are no functions.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// Moves the functions of a range of code to `added`, by address.
fn end_stretch(stretch: &mut Vec<Function>, added: &mut Vec<Function>) {
    stretch.sort_by_key(|function| function.begin);
    if let Some(last) = stretch.last_mut() {
        last.is_last = true;
    }
    added.append(stretch);
}

/// The address ranges of `functions`: each is within one module and one range of code, without wide gaps. Sorted,
/// without overlaps.
fn runs(functions: &[Function]) -> Vec<RangeInclusive<u64>> {
    let runs = functions.chunk_by(|left, right| {
        !left.is_last && left.module == right.module && right.begin - left.begin <= LAST
    });
    let mut runs: Vec<_> = runs
        .filter_map(|run| Some(run.first()?.begin..=run.last()?.begin))
        .collect();
    runs.sort_by_key(|run| *run.start());
    // Overlapping ranges, which a kernel doesn't have, are merged.
    runs.dedup_by(|next, run| {
        let overlaps = next.start() <= run.end();
        if overlaps {
            *run = *run.start()..=*run.end().max(next.end());
        }
        overlaps
    });
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_function_around_an_address() {
        let symbols =
            Symbols::parse("2000 t second\nnonsense\n1000 T first\n3000 t last [module]\n");
        assert_eq!(symbols.len(), 3);
        assert_eq!(symbols.find(0xfff), None);
        assert_eq!(symbols.find(0x1fff), Some("first"));
        assert_eq!(symbols.find(0x2000), Some("second"));
        assert_eq!(symbols.find(0x3000 + LAST - 1), Some("last"));
        assert_eq!(symbols.find(0x3000 + LAST), None);
        assert_eq!(symbols.address_of("second"), Some(0x2000));
        assert_eq!(symbols.address_of("last"), None);
    }

    #[test]
    fn functions_know_their_module() {
        let symbols = Symbols::parse("1000 T a\n900000 t b\t[net]\n");
        let found = symbols.locate(0x90_0010).unwrap();
        assert_eq!((found.name, &**found.module), ("b", "[net]"));
        assert_eq!(found.offset, 16);
        assert_eq!(&**symbols.locate(0x1001).unwrap().module, KERNEL);
        // The kernel doesn't extend to its modules.
        assert_eq!(symbols.locate(0x80_0000), None);
    }

    #[test]
    fn later_symbols_replace_earlier_ones() {
        let mut symbols =
            Symbols::parse("1000 T kernel\n2000 t old1\t[a]\n2800 t old2\t[a]\n5000 t far\t[b]\n");
        symbols.add("2100 t new1\t[c]\n2900 t new2\t[c]\n1000 T kernel\n");
        let name = |address| symbols.find(address).unwrap();
        assert_eq!(name(0x2050), "old1");
        assert_eq!(name(0x2850), "new1");
        assert_eq!(name(0x2950), "new2");
        assert_eq!(name(0x5000), "far");
        assert_eq!(symbols.len(), 5);
        symbols.add("");
        assert_eq!(symbols.len(), 5);
    }

    #[test]
    fn the_gap_between_two_parts_of_a_module_is_not_its() {
        // b was loaded between the two parts of a, which was there first, and stays.
        let between = "3000 t b1\t[b]\n3800 t b2\t[b]\n\n";
        let around = "1000 t a1\t[a]\n1800 t a2\t[a]\n\n5000 t init_a\t[a]\n\n";
        for texts in [[between, around], [around, between]] {
            let mut symbols = Symbols::default();
            for text in texts {
                symbols.add(text);
            }
            assert_eq!(symbols.len(), 5, "{texts:?}");
            assert_eq!(symbols.find(0x3004), Some("b1"));
            assert_eq!(symbols.find(0x3ffc), Some("b2"));
        }
        // The last function of a doesn't extend over the gap to the other part.
        let mut symbols = Symbols::parse("1000 t a\t[a]\n\n90000 t init_a\t[a]\n\n");
        assert_eq!(symbols.find(0x1000 + LAST), None);
        // The first part was loaded again at a lower address, and replaces what was there.
        symbols.add("90000 t c\t[c]\n\n800 t a\t[a]\n1800 t a2\t[a]\n");
        let name = |address| symbols.find(address);
        assert_eq!(
            [name(0x900), name(0x1004), name(0x1900), name(0x9_0004)],
            [Some("a"), Some("a"), Some("a2"), Some("c")]
        );
    }
}
