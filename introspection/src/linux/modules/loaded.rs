//! All modules at one moment.

use std::ops::Range;
use std::sync::Arc;

use crate::PhysicalMemory;

use super::super::view::KernelView;
use super::ListFingerprint;
use super::module::{ListedModule, Module, ModuleInfo, Unwinding};
use super::module_layout::ModuleLayout;
use super::reader::BoundedReader;
use crate::unwind::ModuleCode;

/// Maximum number of modules of a guest. Distribution kernels load some 100 to 300.
const MAX_MODULES: usize = 1024;
/// Maximum number of bytes that are read for all modules together. Some hundred modules have about 20 MiB.
const MAX_BYTES: usize = 64 << 20;
/// Maximum number of bytes that are stored for all modules together.
const MAX_KEPT: usize = 64 << 20;

/// All modules at one moment.
#[derive(Debug, Default)]
pub struct LoadedModules {
    fingerprint: Option<ListFingerprint>,
    is_loading: bool,
    modules: Vec<Arc<Module>>,
    /// Where their code begins, and their indices in `modules`, sorted.
    places: Vec<(u64, usize)>,
    code: ModuleCode,
}

impl LoadedModules {
    /// The list's fingerprint when it was read; `None` before that.
    pub fn fingerprint(&self) -> Option<ListFingerprint> {
        self.fingerprint
    }

    /// Whether no module was still loading when the list was read.
    pub fn is_complete(&self) -> bool {
        !self.is_loading
    }

    /// The modules' code with its unwind tables.
    pub fn code(&self) -> &ModuleCode {
        &self.code
    }

    /// The module that contains `address`. The code of a kernel's modules doesn't overlap.
    pub(super) fn module_at(&self, address: u64) -> Option<&Arc<Module>> {
        let after = self.places.partition_point(|(start, _)| *start <= address);
        let (_, index) = self.places.get(after.checked_sub(1)?)?;
        let module = self.modules.get(*index)?;
        module.info.has_code_at(address).then_some(module)
    }

    /// The module with the same first range of code as `info`.
    fn at_place_of(&self, info: &ModuleInfo) -> Option<&Arc<Module>> {
        self.module_at(info.texts().first()?.start)
    }

    /// All functions of the modules, sorted by address, in the form of `/proc/kallsyms`.
    pub fn functions(&self) -> String {
        let mut lines: Vec<&str> = (self.modules.iter())
            .flat_map(|module| module.functions.lines())
            .filter(|line| !line.is_empty())
            .collect();
        // Each text starts with an address of a fixed width.
        lines.sort_by_key(|line| line.get(..16));
        let mut text = String::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// The modules, in the order of the list, and after them what the kernel has made.
    pub(super) fn modules(&self) -> &[Arc<Module>] {
        &self.modules
    }

    /// The number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// The modules that aren't in `others`.
    pub(super) fn not_in(&self, others: &Self) -> Vec<Arc<Module>> {
        let is_new = |module: &&Arc<Module>| {
            let other = others.at_place_of(&module.info);
            !other.is_some_and(|other| Arc::ptr_eq(module, other))
        };
        self.modules.iter().filter(is_new).cloned().collect()
    }

    /// The ranges of the modules' code that `later` doesn't have any more.
    pub(super) fn gone_from(&self, later: &Self) -> Vec<Range<u64>> {
        let is_there = |module: &Module, text: &Range<u64>| {
            let other = later.module_at(text.start);
            other.is_some_and(|other| other.info.has_text_of(&module.info, text))
        };
        let modules = self.modules.iter();
        let texts =
            modules.flat_map(|module| module.info.texts().iter().map(move |text| (module, text)));
        texts
            .filter(|(module, text)| !is_there(module, text))
            .map(|(_, text)| text.clone())
            .collect()
    }

    /// Reads the list, which has the given fingerprint. Modules in `before` aren't read again.
    pub(super) fn read<M: PhysicalMemory>(
        layout: &ModuleLayout,
        view: &KernelView<'_, M>,
        unwinding: &Unwinding,
        fingerprint: Option<ListFingerprint>,
        before: &Self,
    ) -> Self {
        let mut loaded = Self {
            fingerprint,
            ..Self::default()
        };
        let mut reader = BoundedReader::new(view, MAX_BYTES);
        let mut kept = 0;
        for address in layout.list.structures(view, MAX_MODULES) {
            let Some(bytes) = reader.bytes(address, layout.length) else {
                break;
            };
            match ModuleInfo::read(layout, address, &bytes, &mut reader) {
                ListedModule::Unformed => loaded.is_loading = true,
                ListedModule::Nonsense => {}
                ListedModule::Formed(info) => {
                    let module = before.with(&info).unwrap_or_else(|| {
                        let module = Module::read(info, unwinding, &mut reader);
                        Arc::new(module)
                    });
                    kept += module.footprint();
                    if kept > MAX_KEPT {
                        break;
                    }
                    loaded.modules.push(module);
                }
            }
        }
        let before = |info: &ModuleInfo| before.with(info);
        for module in layout.generated.read(view, &mut reader, before) {
            kept += module.footprint();
            if kept > MAX_KEPT {
                break;
            }
            loaded.modules.push(module);
        }
        loaded.places = places(&loaded.modules);
        let regions = loaded.modules.iter().flat_map(|module| module.code.clone());
        loaded.code = ModuleCode::new(regions.collect());
        loaded
    }

    /// The module that still has this `info`.
    fn with(&self, info: &ModuleInfo) -> Option<Arc<Module>> {
        let known = self.at_place_of(info);
        known.filter(|module| module.info == *info).cloned()
    }
}

/// Where the code of `modules` begins, and their indices, sorted.
fn places(modules: &[Arc<Module>]) -> Vec<(u64, usize)> {
    let modules = modules.iter().enumerate();
    let texts = modules.flat_map(|(index, module)| {
        let texts = module.info.texts().iter();
        texts.map(move |text| (text.start, index))
    });
    let mut places: Vec<(u64, usize)> = texts.collect();
    places.sort_unstable();
    places
}
