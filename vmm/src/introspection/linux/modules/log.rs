//! Which modules there have been, for those who want to hear of each.

use std::collections::VecDeque;
use std::sync::Arc;

use super::LoadedModules;

/// Most bytes of text that are kept for those who ask late.
const MAX_KEPT: usize = 32 << 20;
/// Most bytes of text that are ever handed out: a guest that makes up modules must not fill recordings.
const MAX_EVER: u64 = 256 << 20;

/// Most bytes of text that are handed out at once, if a module doesn't have more.
const MAX_AT_ONCE: usize = 4 << 20;

/// Functions of modules that were learned of since somebody last asked.
#[derive(Debug, PartialEq, Eq)]
pub struct NewFunctions {
    /// The functions, in the form of `/proc/kallsyms`.
    pub text: String,
    /// What to say the next time.
    pub known: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct ModuleLog {
    /// The functions of the newest, with the bytes of text up to the end of each.
    texts: VecDeque<(u64, Arc<str>)>,
    kept: usize,
    end: u64,
    /// What vCPUs may still use, so that it isn't they who free it.
    retired: Vec<Arc<LoadedModules>>,
}

impl ModuleLog {
    /// Adds the functions of modules that were not there before.
    pub fn add(&mut self, texts: impl Iterator<Item = Arc<str>>) {
        for text in texts {
            let end = self.end.saturating_add(text.len() as u64);
            if text.is_empty() || end > MAX_EVER {
                continue;
            }
            self.end = end;
            self.kept += text.len();
            self.texts.push_back((end, text));
            while self.kept > MAX_KEPT
                && let Some((_, oldest)) = self.texts.pop_front()
            {
                self.kept -= oldest.len();
            }
        }
    }

    /// The text behind the first `known` bytes, if there is more and it is still there. There may be even more.
    pub fn after(&self, known: u64) -> Option<NewFunctions> {
        let mut new = NewFunctions {
            text: String::new(),
            known,
        };
        for (end, text) in self.texts.iter().filter(|(end, _)| *end > known) {
            if !new.text.is_empty() && new.text.len() + text.len() > MAX_AT_ONCE {
                break;
            }
            new.text.push_str(text);
            new.known = *end;
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

    #[test]
    fn what_is_kept_and_handed_out_is_bounded() {
        let mut log = ModuleLog::default();
        let text: Arc<str> = "x".repeat(3 << 20).into();
        let mut texts = vec![Arc::clone(&text); 200];
        texts.insert(1, "".into());
        log.add(texts.into_iter());
        assert!(log.kept <= MAX_KEPT && log.end <= MAX_EVER);
        let lengths = log.texts.iter().map(|(_, text)| text.len());
        assert_eq!(log.kept, lengths.sum::<usize>());
        // One by one, up to the end, beginning with the oldest that is left.
        let (mut known, mut handed_out) = (0, 0);
        while let Some(new) = log.after(known) {
            assert_eq!(new.text.len(), text.len());
            assert!(new.known > known);
            known = new.known;
            handed_out += new.text.len();
        }
        assert_eq!((known, handed_out), (log.end, log.kept));
        // Small ones go together.
        let mut log = ModuleLog::default();
        log.add(["a\n", "b\n"].into_iter().map(Arc::from));
        let expected = NewFunctions {
            text: "a\nb\n".to_owned(),
            known: 4,
        };
        assert_eq!(log.after(0), Some(expected));
        assert_eq!(log.after(2).unwrap().text, "b\n");
        assert_eq!(log.after(4), None);
    }
}
