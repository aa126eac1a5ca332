//! A log of all modules that the guest has loaded, for recorders.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::module::Module;
use kvmprof_recording::file::{GoneCode, SymbolChange};

/// Maximum number of bytes of text that are stored for late readers.
const MAX_KEPT: usize = 32 << 20;
/// Maximum number of modules whose text is stored.
const MAX_ENTRIES: usize = 4096;
/// Number of bytes of text that the log takes at first, and how many more in a second, up to that: a guest with made-up modules can't fill
/// recordings.
const BUDGET: u64 = 256 << 20;
const BUDGET_PER_SECOND: u64 = 16 << 10;
/// Further bytes, for ends of modules alone: without these, code that comes to their places would have their names.
const BUDGET_FOR_ENDS: u64 = 16 << 20;
const SECOND: u64 = 1_000_000_000;
/// Maximum number of bytes of text in one reply, unless a single module has more.
const MAX_AT_ONCE: usize = 4 << 20;
/// Maximum number of modules in one reply.
const MAX_MODULES_AT_ONCE: usize = 512;

/// Functions of modules that were loaded since the reader's last request.
#[derive(Debug, PartialEq, Eq)]
pub struct NewFunctions {
    /// The functions, in the form of `/proc/kallsyms`, with the times of changes as recordings have them.
    pub text: String,
    /// The position to continue from at the next request.
    pub known: u64,
}

/// One module, or those that have gone.
#[derive(Debug)]
pub struct Entry {
    /// Its functions.
    pub text: Arc<str>,
    /// The addresses of its code.
    pub code: Vec<Range<u64>>,
    /// Whether it has no functions: modules have gone.
    is_end: bool,
    /// The number of bytes of text of all modules up to this one.
    pub end: u64,
}

impl Entry {
    /// The entry of `module`, which came with a `change` if its time is known.
    pub fn new(module: &Module, change: Option<SymbolChange>) -> Self {
        let functions = &module.functions;
        Self {
            text: match change {
                Some(change) if !functions.is_empty() => format!("{change}{functions}").into(),
                _ => Arc::clone(functions),
            },
            code: (module.code.iter())
                .map(|region| region.range.clone())
                .collect(),
            is_end: false,
            end: 0,
        }
    }

    /// The entry of code that has `gone` with a change. `None` if there is none.
    pub fn gone(gone: Vec<Range<u64>>, change: SymbolChange) -> Option<Self> {
        let mut text = change.to_string();
        for range in &gone {
            text += &GoneCode(range.clone()).to_string();
        }
        (!gone.is_empty()).then(|| Self {
            text: text.into(),
            code: gone,
            is_end: true,
            end: 0,
        })
    }

    /// Whether the module's code overlaps one of `others`.
    fn overlaps(&self, others: &[Range<u64>]) -> bool {
        let mut own = self.code.iter();
        own.any(|own| {
            let mut others = others.iter();
            others.any(|other| own.start < other.end && other.start < own.end)
        })
    }
}

/// The functions of all modules until now, oldest first, with a limit.
#[derive(Debug, Default)]
pub struct ModuleLog {
    /// The newest modules.
    entries: VecDeque<Entry>,
    kept: usize,
    end: u64,
    budget: LogBudget,
    omissions: ModuleOmissions,
}

/// How many more bytes of text the log takes.
#[derive(Clone, Copy, Debug)]
struct LogBudget {
    /// In bytes.
    left: u64,
    /// When it grew last, in ns.
    grown: Option<u64>,
}

impl Default for LogBudget {
    fn default() -> Self {
        Self {
            left: BUDGET + BUDGET_FOR_ENDS,
            grown: None,
        }
    }
}

impl LogBudget {
    /// Grows until `now`, in ns.
    fn grow(&mut self, now: u64) {
        let passed = now.saturating_sub(self.grown.unwrap_or(now));
        let more = u128::from(passed) * u128::from(BUDGET_PER_SECOND) / u128::from(SECOND);
        if more > 0 || self.grown.is_none() {
            let more = u64::try_from(more).unwrap_or(u64::MAX);
            self.left = (self.left.saturating_add(more)).min(BUDGET + BUDGET_FOR_ENDS);
            self.grown = Some(now);
        }
    }

    /// Takes the length of `entry` from it; false if there is less.
    fn take(&mut self, entry: &Entry) -> bool {
        let length = entry.text.len() as u64;
        let others = if entry.is_end { 0 } else { BUDGET_FOR_ENDS };
        let is_enough = length.saturating_add(others) <= self.left;
        if is_enough {
            self.left -= length;
        }
        is_enough
    }
}

/// Entries of the log that limits have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleOmissions {
    /// Those that no reader gets who starts later.
    pub forgotten: u64,
    /// Those that no reader gets.
    pub refused: u64,
}

impl ModuleLog {
    /// Adds modules that aren't in the log yet, at time `now` in ns, if that is known.
    pub fn add(&mut self, entries: impl Iterator<Item = Entry>, now: Option<u64>) {
        if let Some(now) = now {
            self.budget.grow(now);
        }
        for mut entry in entries {
            let length = entry.text.len();
            entry.end = self.end.saturating_add(length as u64);
            if length == 0 {
                continue;
            }
            if !self.budget.take(&entry) {
                self.omissions.refused += 1;
                continue;
            }
            self.end = entry.end;
            self.kept += length;
            self.entries.push_back(entry);
            while (self.kept > MAX_KEPT || self.entries.len() > MAX_ENTRIES)
                && let Some(oldest) = self.entries.pop_front()
            {
                self.kept -= oldest.text.len();
                self.omissions.forgotten += 1;
            }
        }
    }

    /// Goes on where `former`, the log of another kernel, has ended. Nothing may be in the log yet.
    pub fn begin_after(&mut self, former: &Self) {
        (self.end, self.budget) = (former.end, former.budget);
    }

    /// What limits have cost until now.
    pub fn omissions(&self) -> ModuleOmissions {
        self.omissions
    }

    /// The text after the first `known` bytes, if there is more and it is still stored. The reply may be incomplete: a
    /// module that overlaps an earlier one comes in a later reply.
    pub fn after(&self, known: u64) -> Option<NewFunctions> {
        let mut new = NewFunctions {
            text: String::new(),
            known,
        };
        let mut code = Vec::new();
        let later = self.entries.iter().filter(|entry| entry.end > known);
        for entry in later.take(MAX_MODULES_AT_ONCE) {
            let is_too_long = new.text.len() + entry.text.len() > MAX_AT_ONCE;
            if !new.text.is_empty() && (is_too_long || entry.overlaps(&code)) {
                break;
            }
            new.text.push_str(&entry.text);
            new.known = entry.end;
            code.extend(entry.code.iter().cloned());
        }
        (!new.text.is_empty()).then_some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, begin: u64) -> Entry {
        Entry {
            text: text.into(),
            code: std::iter::once(begin..begin + 10).collect(),
            is_end: false,
            end: 0,
        }
    }

    #[test]
    fn the_log_and_its_replies_are_bounded() {
        let mut log = ModuleLog::default();
        let text = "x".repeat(3 << 20);
        let entries = (0..200).map(|number| entry(&text, number * 10));
        log.add(entries.chain([entry("", 0)]), None);
        assert!(log.kept <= MAX_KEPT && log.end <= BUDGET);
        let lengths = log.entries.iter().map(|entry| entry.text.len());
        assert_eq!(log.kept, lengths.sum::<usize>());
        let ModuleOmissions { forgotten, refused } = log.omissions();
        assert_eq!(forgotten + refused + log.entries.len() as u64, 200);
        assert_eq!(refused, 200 - BUDGET / (3 << 20));
        let mut many = ModuleLog::default();
        many.add((0..10_000).map(|number| entry("x", number * 10)), None);
        assert_eq!((many.entries.len(), many.kept), (MAX_ENTRIES, MAX_ENTRIES));
        let forgotten = 10_000 - MAX_ENTRIES as u64;
        assert_eq!(
            many.omissions(),
            ModuleOmissions {
                forgotten,
                refused: 0
            }
        );
        let most = many.after(0).unwrap().text.len();
        assert_eq!(most, MAX_MODULES_AT_ONCE);
        // One by one to the end, from the oldest stored module on.
        let (mut known, mut handed_out) = (0, 0);
        while let Some(new) = log.after(known) {
            assert_eq!(new.text.len(), text.len());
            assert!(new.known > known);
            known = new.known;
            handed_out += new.text.len();
        }
        assert_eq!((known, handed_out), (log.end, log.kept));
    }

    /// Otherwise what is loaded after some months would have the names of what was there before, or none.
    #[test]
    fn a_full_log_takes_ends_and_later_modules() {
        let mut log = ModuleLog::default();
        let text = "x".repeat(1 << 20);
        log.add((0..300).map(|number| entry(&text, number * 10)), Some(0));
        assert_eq!(log.omissions().refused, 300 - 256);
        let end = || Entry::gone(std::iter::once(0..10).collect(), SymbolChange::at(7));
        log.add(end().into_iter(), Some(1));
        assert_eq!(log.entries.back().unwrap().text, end().unwrap().text);
        // Just more than a module's length.
        let later = 65 * SECOND;
        log.add([entry(&text, 0), entry(&text, 20)].into_iter(), Some(later));
        assert_eq!(log.omissions().refused, 300 - 256 + 1);
        assert_eq!(log.entries.back().unwrap().code.first(), Some(&(0..10)));
        // Small steps add up, and the budget has an upper limit.
        for step in 1..=140_000 {
            log.budget.grow(later + step * SECOND / 1000);
        }
        log.add(
            [0, 20, 40].map(|begin| entry(&text, begin)).into_iter(),
            None,
        );
        assert_eq!(log.omissions().refused, 300 - 256 + 2);
        log.budget.grow(u64::MAX);
        assert_eq!(log.budget.left, BUDGET + BUDGET_FOR_ENDS);
    }

    #[test]
    fn small_modules_share_an_entry_unless_they_overlap() {
        let mut log = ModuleLog::default();
        log.add(
            [("a\n", 0), ("b\n", 20), ("c\n", 9)]
                .map(|(text, begin)| entry(text, begin))
                .into_iter(),
            None,
        );
        let expected = NewFunctions {
            text: "a\nb\n".to_owned(),
            known: 4,
        };
        assert_eq!(log.after(0), Some(expected));
        assert_eq!(log.after(2).unwrap().text, "b\nc\n");
        assert_eq!(log.after(4).unwrap().text, "c\n");
        assert_eq!(log.after(6), None);
    }
}
