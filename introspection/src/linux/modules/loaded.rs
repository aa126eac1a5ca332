//! All modules, as they were at one moment.

use std::sync::Arc;

use crate::PhysicalMemory;

use super::super::view::KernelView;
use super::ListSign;
use super::module::{Found, Module, ModuleFacts};
use super::module_layout::ModuleLayout;
use super::reader::BoundedReader;
use crate::bytes::u64_at;
use crate::unwind::{ModuleCode, OrcFormat};

/// Most modules of a guest: distribution kernels load some 100 to 300.
const MAX_MODULES: usize = 1024;
/// Most bytes that are read of all modules together: some hundred have about 20 MiB.
const MAX_BYTES: usize = 64 << 20;
/// Most bytes that are kept of all modules together.
const MAX_KEPT: usize = 64 << 20;

/// All modules, as they were at one moment.
#[derive(Debug, Default)]
pub struct LoadedModules {
    sign: Option<ListSign>,
    is_unsettled: bool,
    modules: Vec<Arc<Module>>,
    code: ModuleCode,
}

impl LoadedModules {
    /// What the list looked like when it was read; `None` before that.
    pub fn sign(&self) -> Option<ListSign> {
        self.sign
    }

    /// Whether no module was about to come, of which nothing was known yet.
    pub fn is_settled(&self) -> bool {
        !self.is_unsettled
    }

    /// How their stacks are unwound.
    pub fn code(&self) -> &ModuleCode {
        &self.code
    }

    /// The module that `address` lies in.
    pub(super) fn module_at(&self, address: u64) -> Option<&Module> {
        let mut modules = self.modules.iter().map(Arc::as_ref);
        modules.find(|module| module.facts.has_code_at(address))
    }

    /// All their functions, by address, in the form of `/proc/kallsyms`.
    pub fn functions(&self) -> String {
        let mut lines: Vec<&str> = (self.modules.iter())
            .flat_map(|module| module.functions.lines())
            .filter(|line| !line.is_empty())
            .collect();
        // Each starts with an address of a fixed width.
        lines.sort_by_key(|line| line.get(..16));
        let mut text = String::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Those that aren't in `others`.
    pub(super) fn not_in(&self, others: &Self) -> Vec<Arc<Module>> {
        let is_new = |module: &&Arc<Module>| {
            let mut others = others.modules.iter();
            !others.any(|other| Arc::ptr_eq(module, other))
        };
        self.modules.iter().filter(is_new).cloned().collect()
    }

    /// Reads the list whose head is at `head`, which looks like `sign`. What is in `before` isn't read again.
    pub(super) fn read<M: PhysicalMemory>(
        layout: &ModuleLayout,
        view: &KernelView<'_, M>,
        head: u64,
        format: Option<OrcFormat>,
        sign: Option<ListSign>,
        before: &Self,
    ) -> Self {
        let mut loaded = Self {
            sign,
            ..Self::default()
        };
        let mut reader = BoundedReader::new(view, MAX_BYTES);
        let mut kept = 0;
        let mut link = view.u64(head);
        for _ in 0..MAX_MODULES {
            let Some(place) = link.filter(|place| *place != head) else {
                break;
            };
            let address = place.wrapping_sub(layout.list as u64);
            let Some(bytes) = reader.bytes(address, layout.length) else {
                break;
            };
            match ModuleFacts::read(layout, address, &bytes, &mut reader) {
                Found::Unformed => loaded.is_unsettled = true,
                Found::Nonsense => {}
                Found::Module(facts) => {
                    let module = before.with(&facts).unwrap_or_else(|| {
                        let module = Module::read(facts, format, &mut reader);
                        Arc::new(module)
                    });
                    kept += module.footprint();
                    if kept > MAX_KEPT {
                        break;
                    }
                    loaded.modules.push(module);
                }
            }
            link = u64_at(&bytes, layout.list);
        }
        let regions = loaded.modules.iter().flat_map(|module| module.code.clone());
        loaded.code = ModuleCode::new(regions.collect());
        loaded
    }

    /// The module that is still as `facts` say.
    fn with(&self, facts: &ModuleFacts) -> Option<Arc<Module>> {
        let mut modules = self.modules.iter();
        modules.find(|module| module.facts == *facts).cloned()
    }
}
