//! The modules of a running kernel, read from its memory: their addresses, their functions, and their unwind tables; and
//! the code that the kernel has made of BPF programs, which are functions of a module of theirs.
//!
//! Modules are loaded and unloaded while the guest runs. A sample in code outside the kernel's image checks whether the
//! lists have changed since they were read ([`ListFingerprint`], three numbers each). If so, a separate thread reads the
//! changed parts ([`Modules::serve`]). Until then, stacks through modules are broken; nothing is guessed.

mod generated;
mod list;
mod loaded;
mod log;
mod module;
mod module_layout;
mod reader;
mod retired;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{PhysicalMemory, Registers, Symbols};

use super::LinuxKnowledge;
use super::placement::Placement;
use super::view::KernelView;
use crate::image::types::{Missing, Types};
use kvmprof_paging::{CR0_PG, CR4_LA57, EFER_LMA};
use kvmprof_recording::file::SymbolChange;
use list::ListState;
use log::{Entry, ModuleLog};
use module::Unwinding;
use module_layout::ModuleLayout;
use retired::RetiredLists;
use watch::Watch;

pub use loaded::LoadedModules;
pub use log::{ModuleOmissions, NewFunctions};

/// Maximum number of modules of a list whose names are read: far more than kernels have.
const MAX_NAMED: usize = 1024;
/// Maximum number of attempts to read a list that changes meanwhile.
const MAX_TRIES: usize = 3;

/// Distinguishes the lists of modules and of code that the kernel has made from their former states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListFingerprint {
    modules: ListState,
    generated: [Option<ListState>; 2],
}

/// The modules of one kernel, shared by all threads.
#[derive(Debug)]
pub struct Modules {
    layout: Option<ModuleLayout>,
    /// The kernel's own page tables, also of a kernel that can't load modules.
    page_tables: Option<u64>,
    five_levels: AtomicBool,
    /// The number of times that `loaded` has been replaced.
    generation: AtomicU64,
    loaded: Mutex<Arc<LoadedModules>>,
    log: Mutex<ModuleLog>,
    retired: Mutex<RetiredLists>,
    watch: Watch,
    clock: OnceLock<Clock>,
    /// The last time at which a vCPU found the list unchanged.
    unchanged: AtomicU64,
}

/// The time of samples, in ns.
pub type Clock = fn() -> u64;

impl Modules {
    /// The modules of a kernel with `symbols` and `types`. If these lack what locates the modules, none will be found.
    pub fn new(symbols: &Symbols, types: &Types<'_>) -> Self {
        let [page_tables] = symbols.addresses_of(["init_top_pgt"]);
        Self {
            layout: ModuleLayout::find(symbols, types),
            page_tables,
            five_levels: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            loaded: Mutex::default(),
            log: Mutex::default(),
            retired: Mutex::default(),
            watch: Watch::default(),
            clock: OnceLock::new(),
            unchanged: AtomicU64::new(0),
        }
    }

    /// Whether the kernel's symbols and types locate its modules.
    pub fn can_be_found(&self) -> bool {
        self.layout.is_some()
    }

    /// The link-time address of the kernel's own page tables.
    ///
    /// # Errors
    /// It isn't known.
    pub fn page_tables(&self) -> Result<u64, Missing> {
        self.page_tables.ok_or(Missing::Symbol("init_top_pgt"))
    }

    /// Notes the number of levels of the kernel's page tables from any vCPU's registers.
    pub fn note_paging(&self, registers: &Registers) {
        let five_levels = registers.cr4 & CR4_LA57 != 0;
        self.five_levels.store(five_levels, Ordering::Relaxed);
    }

    /// The number of times that the known modules have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The modules at the last read of the list.
    pub fn loaded(&self) -> Arc<LoadedModules> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates `known`, which belongs to a vCPU's thread. Never waits.
    pub fn follow(&self, known: &mut KnownModules) {
        let generation = self.generation();
        if known.generation != generation
            && let Ok(loaded) = self.loaded.try_lock()
        {
            // The thread that replaced the old list keeps it while it is in use, so nothing is freed here.
            known.loaded = Arc::clone(&loaded);
            known.generation = generation;
        }
    }

    /// Whether `loaded` is the list's present state. If not, requests a read of the list.
    pub fn check<M: PhysicalMemory>(
        &self,
        memory: &M,
        placement: Placement,
        loaded: &LoadedModules,
    ) -> bool {
        let Some(layout) = &self.layout else {
            return true;
        };
        let fingerprint = fingerprint(layout, memory, placement);
        let is_current = fingerprint.is_some() && fingerprint == loaded.fingerprint();
        if !is_current || !loaded.is_complete() {
            self.watch.request();
        }
        if is_current && let Some(now) = self.now() {
            self.unchanged.fetch_max(now, Ordering::Relaxed);
        }
        is_current
    }

    /// Whether all modules of `loaded` that contain `frames` are still loaded and unchanged.
    pub fn still_has<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        loaded: &LoadedModules,
        frames: &[u64],
    ) -> bool {
        let Some(layout) = &self.layout else {
            return true;
        };
        let mut last = None;
        frames.iter().all(|frame| {
            let Some(module) = loaded.module_at(*frame) else {
                return true;
            };
            let is_known = last.is_some_and(|last| std::ptr::eq(last, module));
            last = Some(module);
            is_known || module.info.is_unchanged(layout, view)
        })
    }

    /// The functions of modules after the first `known` bytes of the log.
    pub fn functions_after(&self, known: u64) -> Option<NewFunctions> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.after(known)
    }

    /// The modules, and ends of modules, that limits keep from readers of [`Self::functions_after`].
    pub fn omissions(&self) -> ModuleOmissions {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.omissions()
    }

    /// Reads the list if it has changed, unless former lists that are still in use take too much memory.
    pub fn read<M: PhysicalMemory>(&self, linux: &LinuxKnowledge, memory: &M) {
        let (Some(layout), Some(view)) = (&self.layout, linux.own_view(memory)) else {
            return;
        };
        let placement = view.placement();
        let before = self.loaded();
        if self.retired().are_full(&before) {
            return;
        }
        let mut loaded = Arc::clone(&before);
        for _ in 0..MAX_TRIES {
            let fingerprint = fingerprint(layout, memory, placement);
            let since = self.now();
            if fingerprint.is_none()
                || (fingerprint == loaded.fingerprint() && loaded.is_complete())
            {
                break;
            }
            let unwinding = match (&linux.orc, &linux.rules) {
                (Some(orc), _) => Unwinding::Orc(orc.format()),
                (None, Some(rules)) => Unwinding::Code(Arc::clone(rules), placement.slide),
                (None, None) => Unwinding::FramePointers,
            };
            let read = LoadedModules::read(layout, &view, &unwinding, fingerprint, &loaded);
            loaded = Arc::new(read);
            if fingerprint == self::fingerprint(layout, memory, placement) {
                self.publish(loaded, &before, since);
                break;
            }
        }
    }

    /// Whether a module is called `name` now; `None` while the list's place is unknown. Reads only names, of at most
    /// 1024 modules, for any contents of memory.
    pub(crate) fn has<M: PhysicalMemory>(
        &self,
        linux: &LinuxKnowledge,
        memory: &M,
        name: &str,
    ) -> Option<bool> {
        let (layout, view) = (self.layout.as_ref()?, linux.own_view(memory)?);
        let mut modules = layout.list.structures(&view, MAX_NAMED);
        Some(modules.any(|module| layout.is_called(&view, module, name)))
    }

    /// Begins where `former`, the modules of a kernel that has ended, ends: those who follow them see a change, and read on.
    pub(crate) fn follow_those_of(&self, former: &Self) {
        let ended = former.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.begin_after(&ended);
        drop((log, ended));
        let generation = former.generation().wrapping_add(1);
        self.generation.store(generation, Ordering::Release);
    }

    /// Forgets the loaded modules, because the kernel restarts. Functions of former modules can still be requested.
    pub(crate) fn forget(&self) {
        let before = self.loaded();
        self.publish(Arc::default(), &before, self.now());
    }

    /// The time; `None` until a thread serves the list.
    fn now(&self) -> Option<u64> {
        self.clock.get().map(|clock| clock())
    }

    /// Replaces `before` with `loaded`, which the list has been `since` a time in ns at the latest.
    fn publish(&self, loaded: Arc<LoadedModules>, before: &Arc<LoadedModules>, since: Option<u64>) {
        let new = loaded.not_in(before);
        let change = since.map(|since| SymbolChange {
            since,
            unchanged: self.unchanged.load(Ordering::Relaxed).min(since),
        });
        // That is the first time at which the new list was found.
        self.unchanged
            .fetch_max(since.unwrap_or(0), Ordering::Relaxed);
        let gone = change.and_then(|change| Entry::gone(before.gone_from(&loaded), change));
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let new = new.iter().map(|module| Entry::new(module, change));
        log.add(gone.into_iter().chain(new), since);
        drop(log);
        self.retired().add(Arc::clone(before));
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn retired(&self) -> MutexGuard<'_, RetiredLists> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers that select the kernel's own page tables. `None` if the kernel's symbols don't locate them.
    pub(crate) fn kernel_registers(&self, placement: Placement) -> Option<Registers> {
        let page_tables = self.page_tables().ok()?;
        let five_levels = self.five_levels.load(Ordering::Relaxed);
        Some(Registers {
            cr0: CR0_PG,
            cr3: placement.physical(page_tables).0,
            cr4: if five_levels { CR4_LA57 } else { 0 },
            efer: EFER_LMA,
            ..Registers::default()
        })
    }
}

/// The state of the modules that one vCPU's thread knows.
#[derive(Debug, Default)]
pub struct KnownModules {
    generation: u64,
    loaded: Arc<LoadedModules>,
}

impl KnownModules {
    /// The modules.
    pub fn loaded(&self) -> &LoadedModules {
        &self.loaded
    }
}

/// The list's present fingerprint.
fn fingerprint<M: PhysicalMemory>(
    layout: &ModuleLayout,
    memory: &M,
    placement: Placement,
) -> Option<ListFingerprint> {
    let mut generated = [None; 2];
    for (known, list) in generated.iter_mut().zip(layout.generated.lists()) {
        if let Some(list) = list {
            *known = Some(list.state(memory, placement)?);
        }
    }
    Some(ListFingerprint {
        modules: layout.list.state(memory, placement)?,
        generated,
    })
}
