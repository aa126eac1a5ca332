//! The functions of the guest's kernel and its modules, by address.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// How far the last function of the kernel or a module may reach, in bytes: nothing says where it ends.
const LAST: u64 = 64 << 10;
/// The module that the kernel itself is.
pub const KERNEL: &str = "[kernel]";

/// Functions, by address.
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
}

/// The function that an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// Its name, as mangled as the kernel has it.
    pub name: &'a str,
    /// Its module in brackets, [`KERNEL`] for none.
    pub module: &'a Arc<str>,
    /// Bytes from the function's begin.
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
    /// Reads the form of `/proc/kallsyms`: lines of address, type letter, name, and the module in brackets if it is
    /// one's. Lines of another form are passed over.
    pub fn parse(text: &str) -> Self {
        let mut symbols = Self::default();
        symbols.add(text);
        symbols
    }

    /// Adds those of `text`. Where they overlap with what was there before, `text` is right: a module was loaded where
    /// another one had been.
    pub fn add(&mut self, text: &str) {
        let mut numbers: HashMap<Arc<str>, usize> = self.modules.iter().cloned().zip(0..).collect();
        let mut added = Vec::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let address = words.next().map(|word| u64::from_str_radix(word, 16));
            let (Some(Ok(begin)), Some(name)) = (address, words.nth(1)) else {
                continue;
            };
            let module = match words.next().filter(|word| word.starts_with('[')) {
                None => 0,
                Some(module) => *numbers.entry(module.into()).or_insert_with(|| {
                    self.modules.push(module.into());
                    self.modules.len() - 1
                }),
            };
            added.push(Function {
                begin,
                name: name.to_owned(),
                module,
            });
        }
        added.sort_by_key(|function| function.begin);
        let runs = runs(&added);
        self.functions.retain(|function| {
            let after = runs.partition_point(|run| *run.start() <= function.begin);
            let run = after.checked_sub(1).and_then(|index| runs.get(index));
            !run.is_some_and(|run| run.contains(&function.begin))
        });
        self.functions.append(&mut added);
        self.functions.sort_by_key(|function| function.begin);
    }

    /// The function that `address` lies in.
    pub fn find(&self, address: u64) -> Option<&str> {
        self.locate(address).map(|found| found.name)
    }

    /// The function that `address` lies in, with its module and where in it that is.
    pub fn locate(&self, address: u64) -> Option<Found<'_>> {
        let after = (self.functions).partition_point(|function| function.begin <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        let offset = address - function.begin;
        let is_followed =
            (self.functions.get(after)).is_some_and(|next| next.module == function.module);
        (is_followed || offset < LAST).then(|| Found {
            name: &function.name,
            module: &self.modules[function.module],
            offset,
        })
    }

    /// Where the kernel's own function called `name` begins.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let mut functions = self.functions.iter();
        let function = functions.find(|function| function.module == 0 && function.name == name)?;
        Some(function.begin)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// The stretches that `functions`, in the order of their addresses, take: each of one module, without wide gaps.
fn runs(functions: &[Function]) -> Vec<RangeInclusive<u64>> {
    let runs = functions
        .chunk_by(|left, right| left.module == right.module && right.begin - left.begin <= LAST);
    runs.filter_map(|run| Some(run.first()?.begin..=run.last()?.begin))
        .collect()
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
        // The kernel doesn't reach to its modules.
        assert_eq!(symbols.locate(0x80_0000), None);
    }

    #[test]
    fn what_comes_later_is_right() {
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
}
