//! Which modules there have been, for those who want to hear of each.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::LoadedModules;
use super::module::Module;

/// Most bytes of text that are kept for those who ask late.
const MAX_KEPT: usize = 32 << 20;
/// Most modules of which text is kept.
const MAX_ENTRIES: usize = 4096;
/// Most bytes of text that are ever handed out: a guest that makes up modules must not fill recordings.
const MAX_EVER: u64 = 256 << 20;

/// Most bytes of text that are handed out at once, if a module doesn't have more.
const MAX_AT_ONCE: usize = 4 << 20;
/// Most modules that are handed out at once.
const MAX_MODULES_AT_ONCE: usize = 512;

/// Functions of modules that were learned of since somebody last asked.
#[derive(Debug, PartialEq, Eq)]
pub struct NewFunctions {
    /// The functions, in the form of `/proc/kallsyms`.
    pub text: String,
    /// What to say the next time.
    pub known: u64,
}

/// One module.
#[derive(Debug)]
pub struct Entry {
    /// Its functions.
    pub text: Arc<str>,
    /// Where its code is.
    pub code: Vec<Range<u64>>,
    /// The bytes of text up to its end, of all modules that there have been.
    pub end: u64,
}

impl Entry {
    /// What has to be known of `module`.
    pub fn new(module: &Module) -> Self {
        Self {
            text: Arc::clone(&module.functions),
            code: (module.code.iter())
                .map(|region| region.range.clone())
                .collect(),
            end: 0,
        }
    }

    /// Whether it lies where one of `others` does.
    fn overlaps(&self, others: &[Range<u64>]) -> bool {
        let mut own = self.code.iter();
        own.any(|own| {
            let mut others = others.iter();
            others.any(|other| own.start < other.end && other.start < own.end)
        })
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct ModuleLog {
    /// The newest.
    entries: VecDeque<Entry>,
    kept: usize,
    end: u64,
    /// What vCPUs may still use, so that it isn't they who free it.
    retired: Vec<Arc<LoadedModules>>,
}

impl ModuleLog {
    /// Adds modules that were not there before.
    pub fn add(&mut self, entries: impl Iterator<Item = Entry>) {
        for mut entry in entries {
            let length = entry.text.len();
            entry.end = self.end.saturating_add(length as u64);
            if length == 0 || entry.end > MAX_EVER {
                continue;
            }
            self.end = entry.end;
            self.kept += length;
            self.entries.push_back(entry);
            while (self.kept > MAX_KEPT || self.entries.len() > MAX_ENTRIES)
                && let Some(oldest) = self.entries.pop_front()
            {
                self.kept -= oldest.text.len();
            }
        }
    }

    /// The text behind the first `known` bytes, if there is more and it is still there. There may be even more: a module
    /// that took another one's place isn't handed out together with that.
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

    /// Keeps `loaded` until nobody else has it.
    pub fn retire(&mut self, loaded: Arc<LoadedModules>) {
        self.retired.retain(|loaded| Arc::strong_count(loaded) > 1);
        self.retired.push(loaded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, begin: u64) -> Entry {
        Entry {
            text: text.into(),
            code: std::iter::once(begin..begin + 10).collect(),
            end: 0,
        }
    }

    #[test]
    fn what_is_kept_and_handed_out_is_bounded() {
        let mut log = ModuleLog::default();
        let text = "x".repeat(3 << 20);
        let entries = (0..200).map(|number| entry(&text, number * 10));
        log.add(entries.chain([entry("", 0)]));
        assert!(log.kept <= MAX_KEPT && log.end <= MAX_EVER);
        let lengths = log.entries.iter().map(|entry| entry.text.len());
        assert_eq!(log.kept, lengths.sum::<usize>());
        let mut many = ModuleLog::default();
        many.add((0..10_000).map(|number| entry("x", number * 10)));
        assert_eq!((many.entries.len(), many.kept), (MAX_ENTRIES, MAX_ENTRIES));
        let most = many.after(0).unwrap().text.len();
        assert_eq!(most, MAX_MODULES_AT_ONCE);
        // One by one, up to the end, beginning with the oldest that is left.
        let (mut known, mut handed_out) = (0, 0);
        while let Some(new) = log.after(known) {
            assert_eq!(new.text.len(), text.len());
            assert!(new.known > known);
            known = new.known;
            handed_out += new.text.len();
        }
        assert_eq!((known, handed_out), (log.end, log.kept));
    }

    #[test]
    fn small_ones_go_together_but_for_those_in_one_place() {
        let mut log = ModuleLog::default();
        log.add(
            [("a\n", 0), ("b\n", 20), ("c\n", 9)]
                .map(|(text, begin)| entry(text, begin))
                .into_iter(),
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
