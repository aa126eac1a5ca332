//! The functions of the guest's kernel and its modules, by address.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};

use kvmprof_abi::kallsyms::{KernelSymbol, is_variable};

use super::former::{Change, Epoch, FormerCode, FormerContent};
use super::shared::Shared;
use crate::text::visible;

/// Assumed length of the last function of the kernel or a module, in bytes: kallsyms has no lengths.
pub(super) const LAST: u64 = 64 << 10;
/// The module name of the kernel itself.
pub const KERNEL: &str = "[kernel]";

/// Functions sorted by address.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Parts of that order: none begins before the one before it ends.
    parts: Vec<FunctionGroup>,
    /// Variables, and places in them.
    variables: HashMap<u64, Box<str>>,
    former: FormerCode,
}

/// Functions that lie together, such as those of a module. Kernels have the same parts wherever KASLR has put them: they are in memory once.
#[derive(Clone, Debug)]
struct FunctionGroup {
    /// The first function's start.
    begin: u64,
    functions: Arc<Vec<Function>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Function {
    /// The functions, by their distances from the part's begin.
    offset: u64,
    /// Empty where no function is known, up to the next one.
    pub name: Box<str>,
    /// The module's name, or [`KERNEL`].
    pub module: Arc<str>,
    /// Whether it is the last function of its range of code, after which nothing is known.
    pub is_last: bool,
}

/// A function with its start.
pub(super) type AddressedFunction = (u64, Function);

/// The parts of all tables.
static PARTS: LazyLock<Shared<Vec<Function>>> = LazyLock::new(Shared::new);

/// The function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionAt<'a> {
    /// Its name, as mangled as in the kernel's table.
    pub name: &'a str,
    /// Its module in brackets, or [`KERNEL`].
    pub module: &'a Arc<str>,
    /// The offset from the function's start.
    pub offset: u64,
}

impl Symbols {
    /// Reads the form of `/proc/kallsyms`: lines of address, type letter, name, and a module's name in brackets. An
    /// empty line ends a range of code, and a line `ADDRESS ? [end]` a function that isn't followed by another one. Other
    /// lines are ignored, and what isn't a variable by its letter is a function.
    pub fn parse(text: &str) -> Self {
        let mut symbols = Self::default();
        symbols.add(text);
        symbols
    }

    /// Adds the functions of `text`. They replace older ones that they overlap: a module was loaded at the address of an earlier one. A
    /// line `since SINCE UNCHANGED` says when the lines that follow it came to hold: at SINCE at the latest, and after UNCHANGED, in ns
    /// of CLOCK_MONOTONIC. A line `gone BEGIN END` says that nothing is known between these addresses from then on.
    pub fn add(&mut self, text: &str) {
        for section in sections(text) {
            let change = section.lines().next().and_then(change);
            for gone in section.lines().filter_map(gone) {
                self.replace(&[gone], Vec::new(), change);
            }
            let added = placed(section, &mut self.variables);
            if !added.is_empty() {
                self.replace(&runs(&added), added, change);
            }
        }
    }

    /// Replaces the functions in `runs` by `added`.
    fn replace(
        &mut self,
        runs: &[RangeInclusive<u64>],
        mut added: Vec<AddressedFunction>,
        change: Option<Change>,
    ) {
        added.sort_by_key(by_begin);
        let is_among_added = |part: &FunctionGroup| {
            let end = part.end();
            let after = added.partition_point(|(begin, _)| *begin < part.begin);
            let is_next = added.get(after).is_some_and(|(begin, _)| *begin <= end);
            is_next
                || runs
                    .iter()
                    .any(|run| *run.start() <= end && part.begin <= *run.end())
        };
        let (changed, mut parts): (Vec<FunctionGroup>, Vec<FunctionGroup>) =
            std::mem::take(&mut self.parts)
                .into_iter()
                .partition(is_among_added);
        let placed = changed.iter().flat_map(FunctionGroup::placed);
        let (replaced, mut kept): (Vec<AddressedFunction>, Vec<AddressedFunction>) = placed
            .partition(|(begin, _)| {
                let after = runs.partition_point(|run| run.start() <= begin);
                let run = after.checked_sub(1).and_then(|index| runs.get(index));
                run.is_some_and(|run| run.contains(begin))
            });
        if let Some(change) = change {
            self.retire(runs, &replaced, &added, change);
        }
        if added.is_empty() {
            // Nothing extends over a gap.
            for run in runs {
                let before = kept.partition_point(|(begin, _)| begin < run.start());
                if let Some((_, last)) = before.checked_sub(1).and_then(|index| kept.get_mut(index))
                {
                    last.is_last = true;
                }
            }
        }
        let mut functions: Vec<AddressedFunction> = kept.into_iter().chain(added).collect();
        functions.sort_by_key(by_begin);
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
            parts.extend(FunctionGroup::new(part));
        }
        parts.sort_by_key(|part| part.begin);
        self.parts = parts;
    }

    /// Notes what was in `runs` before `change`, where it was something else.
    fn retire(
        &mut self,
        runs: &[RangeInclusive<u64>],
        replaced: &[AddressedFunction],
        added: &[AddressedFunction],
        change: Change,
    ) {
        let is_same = |(left, old): &AddressedFunction, (right, new): &AddressedFunction| {
            left == right && old.name == new.name && old.module == new.module
        };
        for run in runs {
            let (old, new) = (within(replaced, run), within(added, run));
            let are_same =
                old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_same(old, new));
            if !old.is_empty() && !are_same {
                self.former.add(run.clone(), old.to_vec(), change);
            }
        }
    }

    /// The epoch of `time`, in ns of CLOCK_MONOTONIC, for [`Self::locate_then`].
    pub fn epoch(&self, time: u64) -> Epoch {
        self.former.epoch(time)
    }

    /// The times around `time` that are in the same epoch: from the first one until before the second.
    pub fn epoch_times(&self, time: u64) -> (u64, u64) {
        self.former.epoch_times(time)
    }

    /// The function that was at `address` in `epoch`. `None` also if it is unknown which one of two that was.
    pub fn locate_then(&self, address: u64, epoch: Epoch) -> Option<FunctionAt<'_>> {
        match self.former.at(address, epoch) {
            FormerContent::Same => self.locate(address),
            FormerContent::Other(found) => found,
        }
    }

    /// The name of the function at `address`.
    pub fn find(&self, address: u64) -> Option<&str> {
        self.locate(address).map(|found| found.name)
    }

    /// The function at `address`.
    pub fn locate(&self, address: u64) -> Option<FunctionAt<'_>> {
        let after = self.parts.partition_point(|part| part.begin <= address);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let offset = address - part.begin;
        let next = (part.functions).partition_point(|function| function.offset <= offset);
        let function = part.functions.get(next.checked_sub(1)?)?;
        if function.name.is_empty() {
            return None;
        }
        let offset = offset - function.offset;
        let next = part.functions.get(next);
        let next = next.or_else(|| self.parts.get(after)?.functions.first());
        let is_followed =
            !function.is_last && next.is_some_and(|next| next.module == function.module);
        (is_followed || offset < LAST).then_some(FunctionAt {
            name: &function.name,
            module: &function.module,
            offset,
        })
    }

    /// All functions, each with its start.
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

    /// The start of the kernel's function `name`.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let is_it = |function: &Function| *function.name == *name && *function.module == *KERNEL;
        let found = self.all().find(|(_, function)| is_it(function));
        found.map(|(begin, _)| begin)
    }

    /// The start and the end of each function that `is_wanted` by its name.
    pub(super) fn wanted(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
        let mut all = self.all().peekable();
        let mut wanted = Vec::new();
        while let Some((begin, function)) = all.next() {
            if !function.name.is_empty() && is_wanted(&function.name) {
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

    /// The start and the end of the range of all functions; `None` if there are none.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        let end = self.parts.last()?.end();
        Some((self.parts.first()?.begin, end.saturating_add(LAST)))
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        let functions = self.parts.iter().flat_map(|part| &*part.functions);
        functions
            .filter(|function| !function.name.is_empty())
            .count()
    }

    /// True if there are no functions.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl FunctionGroup {
    /// A part with `functions`, which are sorted, and their begins; `None` if there are none.
    fn new(functions: Vec<AddressedFunction>) -> Option<Self> {
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

    /// The last function's start.
    fn end(&self) -> u64 {
        let last = self.functions.last().map_or(0, |last| last.offset);
        self.begin.saturating_add(last)
    }

    fn placed(&self) -> impl Iterator<Item = AddressedFunction> {
        let functions = self.functions.iter();
        functions.map(|function| (self.begin.saturating_add(function.offset), function.clone()))
    }
}

/// The parts of `text` from one change to the next.
fn sections(text: &str) -> Vec<&str> {
    let mut begins: Vec<usize> = text
        .match_indices("\nsince ")
        .map(|(at, _)| at + 1)
        .collect();
    begins.push(text.len());
    let mut sections = Vec::with_capacity(begins.len());
    let mut begin = 0;
    for end in begins {
        sections.extend(text.get(begin..end));
        begin = end;
    }
    sections
}

/// The change that a line `since SINCE UNCHANGED` is about.
fn change(line: &str) -> Option<Change> {
    let (since, unchanged) = line.strip_prefix("since ")?.split_once(' ')?;
    let since = since.parse().ok()?;
    let unchanged = unchanged.parse::<u64>().ok()?.min(since);
    Some(Change { since, unchanged })
}

/// The addresses that a line `gone BEGIN END` is about.
fn gone(line: &str) -> Option<RangeInclusive<u64>> {
    let (begin, end) = line.strip_prefix("gone ")?.split_once(' ')?;
    let (begin, end) = (hexadecimal(begin)?, hexadecimal(end)?);
    (begin < end).then(|| begin..=end - 1)
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// Those of `functions` that begin in `run`.
fn within<'a>(
    functions: &'a [AddressedFunction],
    run: &RangeInclusive<u64>,
) -> &'a [AddressedFunction] {
    let first = functions.partition_point(|(begin, _)| begin < run.start());
    let end = functions.partition_point(|(begin, _)| begin <= run.end());
    functions.get(first..end).unwrap_or_default()
}

/// The functions of `text`, range of code by range of code. Variables go into `variables`.
fn placed(text: &str, variables: &mut HashMap<u64, Box<str>>) -> Vec<AddressedFunction> {
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
                let name: Arc<str> = visible(&module).into();
                modules.insert(module.into_owned(), Arc::clone(&name));
                name
            },
        );
        let name = if symbol.is_end() {
            Box::default()
        } else {
            String::from_utf8_lossy(symbol.name).into()
        };
        let function = Function {
            offset: 0,
            name,
            module,
            is_last: false,
        };
        stretch.push((symbol.address, function));
    }
    end_stretch(&mut stretch, &mut all);
    all
}

/// The order of functions. At one address the last one counts: one with a name, if there is one.
fn by_begin((begin, function): &AddressedFunction) -> (u64, bool) {
    (*begin, !function.name.is_empty())
}

/// Moves the functions of a range of code to `all`, by address.
fn end_stretch(stretch: &mut Vec<AddressedFunction>, all: &mut Vec<AddressedFunction>) {
    stretch.sort_by_key(by_begin);
    if let Some((_, last)) = stretch.last_mut() {
        last.is_last = true;
    }
    all.append(stretch);
}

/// Whether a function and the next one are in the same module and range of code, without a wide gap between them.
fn are_together((left, function): &AddressedFunction, (right, next): &AddressedFunction) -> bool {
    !function.is_last
        && function.module == next.module
        && right.checked_sub(*left).is_some_and(|gap| gap <= LAST)
}

/// The address ranges of `functions`: each is within one module and one range of code, without wide gaps. Sorted,
/// without overlaps.
fn runs(functions: &[AddressedFunction]) -> Vec<RangeInclusive<u64>> {
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
mod tests;
