//! Which modules there have been, for those who want to hear of each.

use std::collections::VecDeque;
use std::sync::Arc;

use super::LoadedModules;
use super::module::Module;

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
    /// Adds modules that were not there before.
    pub fn add(&mut self, modules: Vec<Arc<Module>>) {
        for module in modules {
            let length = module.functions.len();
            let end = self.end.saturating_add(length as u64);
            if length == 0 || end > MAX_EVER {
                continue;
            }
            self.end = end;
            self.kept += length;
            self.texts.push_back((end, Arc::clone(&module.functions)));
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
