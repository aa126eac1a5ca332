//! Former lists of modules, which vCPUs may still use.

use std::collections::HashSet;
use std::sync::Arc;

use super::LoadedModules;

/// Maximum number of bytes of modules that only former lists have. While more are in use by vCPUs, the list isn't read again.
const MAX_RETIRED: usize = 64 << 20;

/// Former lists. They are freed here, not by a vCPU's thread. A halted vCPU keeps its list until its next request.
#[derive(Debug)]
pub struct RetiredLists {
    lists: Vec<Arc<LoadedModules>>,
    /// [`MAX_RETIRED`], except in tests.
    pub(super) limit: usize,
}

impl Default for RetiredLists {
    fn default() -> Self {
        Self {
            lists: Vec::new(),
            limit: MAX_RETIRED,
        }
    }
}

impl RetiredLists {
    /// Stores `loaded` until nothing else uses it.
    pub fn add(&mut self, loaded: Arc<LoadedModules>) {
        self.free();
        self.lists.push(loaded);
    }

    /// Whether the lists in use take too much memory to add further ones. Modules that are also in the list `present`
    /// don't count.
    pub fn are_full(&mut self, present: &LoadedModules) -> bool {
        self.free();
        let mut known: HashSet<_> = present.modules().iter().map(Arc::as_ptr).collect();
        let modules = self.lists.iter().flat_map(|list| list.modules());
        let others = modules.filter(|module| known.insert(Arc::as_ptr(module)));
        others.map(|module| module.footprint()).sum::<usize>() > self.limit
    }

    fn free(&mut self) {
        self.lists.retain(|loaded| Arc::strong_count(loaded) > 1);
    }
}
