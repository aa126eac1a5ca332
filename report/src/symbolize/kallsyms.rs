//! The functions of the guest's kernel and its modules, by address.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};

use kvmprof_abi::kallsyms::{KernelSymbol, is_variable};

use super::shared::Shared;

/// Assumed length of the last function of the kernel or a module, in bytes: kallsyms has no lengths.
const LAST: u64 = 64 << 10;
/// The module name of the kernel itself.
pub const KERNEL: &str = "[kernel]";

/// Functions sorted by address.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Parts of that order: none begins before the one before it ends.
    parts: Vec<Part>,
    /// Variables, and places in them.
    variables: HashMap<u64, Box<str>>,
}

/// Functions that lie together, such as those of a module. Kernels have the same parts wherever KASLR has put them: they are in memory once.
#[derive(Clone, Debug)]
struct Part {
    /// The first function's begin.
    begin: u64,
    functions: Arc<Vec<Function>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Function {
    /// The functions, by their distances from the part's begin.
    offset: u64,
    name: Box<str>,
    /// The module's name, or [`KERNEL`].
    module: Arc<str>,
    /// Whether it is the last function of its range of code, after which nothing is known.
    is_last: bool,
}

/// A function with its begin.
type Placed = (u64, Function);

/// The parts of all tables.
static PARTS: LazyLock<Shared<Vec<Function>>> = LazyLock::new(Shared::new);

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

impl Symbols {
    /// Reads the form of `/proc/kallsyms`: lines of address, type letter, name, and a module's name in brackets. An
    /// empty line ends a range of code. Other lines are ignored, and what isn't a variable by its letter is a function.
    pub fn parse(text: &str) -> Self {
        let mut symbols = Self::default();
        symbols.add(text);
        symbols
    }

    /// Adds the functions of `text`. They replace older ones that they overlap: a module was loaded at the address of
    /// an earlier one.
    pub fn add(&mut self, text: &str) {
        let mut added = placed(text, &mut self.variables);
        if added.is_empty() {
            return;
        }
        let runs = runs(&added);
        added.sort_by_key(|(begin, _)| *begin);
        let is_among_added = |part: &Part| {
            let end = part.end();
            let after = added.partition_point(|(begin, _)| *begin < part.begin);
            let is_next = added.get(after).is_some_and(|(begin, _)| *begin <= end);
            is_next
                || runs
                    .iter()
                    .any(|run| *run.start() <= end && part.begin <= *run.end())
        };
        let (changed, mut parts): (Vec<Part>, Vec<Part>) = std::mem::take(&mut self.parts)
            .into_iter()
            .partition(is_among_added);
        let kept = changed.iter().flat_map(Part::placed).filter(|(begin, _)| {
            let after = runs.partition_point(|run| run.start() <= begin);
            let run = after.checked_sub(1).and_then(|index| runs.get(index));
            !run.is_some_and(|run| run.contains(begin))
        });
        let mut functions: Vec<Placed> = kept.chain(added).collect();
        functions.sort_by_key(|(begin, _)| *begin);
        let others: Vec<u64> = parts.iter().map(|part| part.begin).collect();
        let is_between = |left: u64, right: u64| {
            let after = others.partition_point(|begin| *begin < left);
            others.get(after).is_some_and(|begin| *begin <= right)
        };
        let mut rest = functions.into_iter().peekable();
        while let Some(first) = rest.next() {
            let mut part = vec![first];
            while let Some(next) = part.last().and_then(|last| {
                rest.next_if(|next| are_together(last, next) && !is_between(last.0, next.0))
            }) {
                part.push(next);
            }
            parts.extend(Part::new(part));
        }
        parts.sort_by_key(|part| part.begin);
        self.parts = parts;
    }

    /// The name of the function at `address`.
    pub fn find(&self, address: u64) -> Option<&str> {
        self.locate(address).map(|found| found.name)
    }

    /// The function at `address`.
    pub fn locate(&self, address: u64) -> Option<Found<'_>> {
        let after = self.parts.partition_point(|part| part.begin <= address);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let offset = address - part.begin;
        let next = (part.functions).partition_point(|function| function.offset <= offset);
        let function = part.functions.get(next.checked_sub(1)?)?;
        let offset = offset - function.offset;
        let next = part.functions.get(next);
        let next = next.or_else(|| self.parts.get(after)?.functions.first());
        let is_followed =
            !function.is_last && next.is_some_and(|next| next.module == function.module);
        (is_followed || offset < LAST).then_some(Found {
            name: &function.name,
            module: &function.module,
            offset,
        })
    }

    /// All functions, each with its begin.
    fn all(&self) -> impl Iterator<Item = (u64, &Function)> {
        self.parts.iter().flat_map(|part| {
            let functions = part.functions.iter();
            functions.map(|function| (part.begin.saturating_add(function.offset), function))
        })
    }

    /// The variable at `address`, or the name of a part of one, if the table has exactly this address.
    pub fn variable(&self, address: u64) -> Option<&str> {
        self.variables.get(&address).map(|name| &**name)
    }

    /// The begin of the kernel's function `name`.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let is_it = |function: &Function| *function.name == *name && *function.module == *KERNEL;
        let found = self.all().find(|(_, function)| is_it(function));
        found.map(|(begin, _)| begin)
    }

    /// The begin and the end of each function that `is_wanted` by its name.
    pub(super) fn wanted(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
        let mut all = self.all().peekable();
        let mut wanted = Vec::new();
        while let Some((begin, function)) = all.next() {
            if is_wanted(&function.name) {
                let next = all.peek();
                let next =
                    next.filter(|(_, next)| !function.is_last && next.module == function.module);
                wanted.push((
                    begin,
                    next.map_or(begin.saturating_add(LAST), |next| next.0),
                ));
            }
        }
        wanted
    }

    /// The begin and the end of the range of all functions; `None` if there are none.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        let end = self.parts.last()?.end();
        Some((self.parts.first()?.begin, end.saturating_add(LAST)))
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.functions.len()).sum()
    }

    /// True if there are no functions.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl Part {
    /// A part with `functions`, which are sorted, and their begins; `None` if there are none.
    fn new(functions: Vec<Placed>) -> Option<Self> {
        let begin = functions.first()?.0;
        let functions = functions.into_iter().map(|(own, function)| Function {
            offset: own - begin,
            ..function
        });
        Some(Self {
            begin,
            functions: PARTS.get(functions.collect()),
        })
    }

    /// The last function's begin.
    fn end(&self) -> u64 {
        let last = self.functions.last().map_or(0, |last| last.offset);
        self.begin.saturating_add(last)
    }

    fn placed(&self) -> impl Iterator<Item = Placed> {
        let functions = self.functions.iter();
        functions.map(|function| (self.begin.saturating_add(function.offset), function.clone()))
    }
}

/// The functions of `text`, range of code by range of code. Variables go into `variables`.
fn placed(text: &str, variables: &mut HashMap<u64, Box<str>>) -> Vec<Placed> {
    let kernel: Arc<str> = KERNEL.into();
    let mut modules: HashMap<String, Arc<str>> = HashMap::new();
    let (mut all, mut stretch) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if line.is_empty() {
            end_stretch(&mut stretch, &mut all);
        }
        let Some(symbol) = KernelSymbol::parse(line.as_bytes()) else {
            continue;
        };
        if is_variable(symbol.kind) {
            let name = String::from_utf8_lossy(symbol.name);
            variables.insert(symbol.address, name.into());
            continue;
        }
        let module = symbol.module.map_or_else(
            || Arc::clone(&kernel),
            |module| {
                let module = String::from_utf8_lossy(module);
                if let Some(known) = modules.get(&*module) {
                    return Arc::clone(known);
                }
                let name: Arc<str> = (&*module).into();
                modules.insert(module.into_owned(), Arc::clone(&name));
                name
            },
        );
        let function = Function {
            offset: 0,
            name: String::from_utf8_lossy(symbol.name).into(),
            module,
            is_last: false,
        };
        stretch.push((symbol.address, function));
    }
    end_stretch(&mut stretch, &mut all);
    all
}

/// Moves the functions of a range of code to `all`, by address.
fn end_stretch(stretch: &mut Vec<Placed>, all: &mut Vec<Placed>) {
    stretch.sort_by_key(|(begin, _)| *begin);
    if let Some((_, last)) = stretch.last_mut() {
        last.is_last = true;
    }
    all.append(stretch);
}

/// Whether a function and the next one are in the same module and range of code, without a wide gap between them.
fn are_together((left, function): &Placed, (right, next): &Placed) -> bool {
    !function.is_last
        && function.module == next.module
        && right.checked_sub(*left).is_some_and(|gap| gap <= LAST)
}

/// The address ranges of `functions`: each is within one module and one range of code, without wide gaps. Sorted,
/// without overlaps.
fn runs(functions: &[Placed]) -> Vec<RangeInclusive<u64>> {
    let runs = functions.chunk_by(are_together);
    let mut runs: Vec<_> = runs
        .filter_map(|run| Some(run.first()?.0..=run.last()?.0))
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

    /// As one list of all functions would be, whatever is added in which order.
    #[test]
    fn parts_are_as_one_list() {
        // Knuth's MMIX generator.
        let mut random = 7_u64;
        let mut below = |end: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        for _ in 0..300 {
            let mut symbols = Symbols::default();
            let mut list: Vec<Placed> = Vec::new();
            for text in 0..5 {
                let mut lines = String::new();
                let mut taken = Vec::new();
                for number in 0..below(12) {
                    let address = 0x1000 + 0x1800 * below(64);
                    // In which order two are at one address isn't said.
                    if taken.contains(&address) {
                        continue;
                    }
                    taken.push(address);
                    let module = ["", "\t[a]", "\t[b]"][usize::try_from(below(3)).unwrap()];
                    let end = ["", "\n"][usize::from(below(4) == 0)];
                    lines += &format!("{address:x} t f{text}_{number}{module}\n{end}");
                }
                symbols.add(&lines);
                let added = placed(&lines, &mut HashMap::new());
                let runs = runs(&added);
                list.retain(|(begin, _)| !runs.iter().any(|run| run.contains(begin)));
                list.extend(added);
                list.sort_by_key(|(begin, _)| *begin);
            }
            assert_eq!(symbols.len(), list.len());
            for address in (0..0x80_000).step_by(0x800) {
                let after = list.partition_point(|(begin, _)| *begin <= address);
                let expected = after.checked_sub(1).and_then(|index| {
                    let (begin, function) = &list[index];
                    let next = list.get(after);
                    let is_followed = !function.is_last
                        && next.is_some_and(|(_, next)| next.module == function.module);
                    (is_followed || address - begin < LAST).then_some(&*function.name)
                });
                assert_eq!(symbols.find(address), expected, "{address:#x} {list:?}");
            }
        }
    }

    #[test]
    fn kernels_share_what_they_have_in_common() {
        let text = |kernel: u64, module: u64| {
            let kernel: String = (0..100)
                .map(|number| format!("{:x} T kernel{number}\n", kernel + 16 * number))
                .collect();
            let module: String = (0..100)
                .map(|number| format!("{:x} t module{number}\t[m]\n", module + 16 * number))
                .collect();
            format!("{kernel}\n{module}")
        };
        let one = Symbols::parse(&text(0xffff_ffff_8100_0000, 0xffff_ffff_c010_0000));
        let mut other = Symbols::parse(&text(0xffff_ffff_9a00_0000, 0xffff_ffff_c0a0_0000));
        assert_eq!(other.find(0xffff_ffff_9a00_0018), Some("kernel1"));
        assert_eq!(other.find(0xffff_ffff_c0a0_0018), Some("module1"));
        let are_shared = |other: &Symbols| -> Vec<bool> {
            let parts = one.parts.iter().zip(&other.parts);
            parts
                .map(|(one, other)| Arc::ptr_eq(&one.functions, &other.functions))
                .collect()
        };
        assert_eq!(are_shared(&other), [true, true]);
        // What is loaded later changes nothing but what it replaces.
        other.add("ffffffffc0a00000 t new\t[n]\nffffffffc0a00020 t new2\t[n]\n");
        assert_eq!(are_shared(&other), [true, false]);
        assert_eq!(other.find(0xffff_ffff_c0a0_0018), Some("new"));
    }
}
