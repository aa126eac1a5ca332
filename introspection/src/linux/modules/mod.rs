//! The modules of a running kernel, read out of its memory: where they are, what their functions are called, how their
//! stacks are unwound.
//!
//! They come and go while the guest runs. A sample in code outside the kernel's image looks whether the list is still as
//! it was when it was read ([`ListSign`], three numbers); if it isn't, a thread of its own reads the list anew
//! ([`Modules::serve`]), and only what it doesn't know yet. Until then stacks through modules are broken, and nothing is
//! guessed.

mod loaded;
mod log;
mod module;
mod module_layout;
mod reader;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::PhysicalMemory;

use super::LinuxKnowledge;
use super::placement::Placement;
use super::view::KernelView;
use crate::Registers;
use crate::Symbols;
use crate::image::btf::Btf;
use crate::memory::{CR0_PG, CR4_LA57, EFER_LMA, read_u64};
use log::{Entry, ModuleLog};
use module_layout::ModuleLayout;
use watch::Watch;

pub use loaded::LoadedModules;
pub use log::NewFunctions;

/// How often a list is read that changes meanwhile.
const MAX_TRIES: usize = 3;

/// What tells a list from what it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSign {
    /// The module that came last, and the one that came first.
    ends: [u64; 2],
    /// A number that is another one after each change, if the kernel has one.
    changes: u32,
}

/// The modules of one kernel, shared by all threads.
#[derive(Debug)]
pub struct Modules {
    layout: Option<ModuleLayout>,
    five_levels: AtomicBool,
    /// How often `loaded` has been replaced.
    generation: AtomicU64,
    loaded: Mutex<Arc<LoadedModules>>,
    log: Mutex<ModuleLog>,
    watch: Watch,
}

impl Modules {
    /// Of a kernel whose symbols and types these are. If they don't say where modules are, none will be found.
    pub fn new(symbols: &Symbols, btf: &Btf<'_>) -> Self {
        Self {
            layout: ModuleLayout::find(symbols, btf),
            five_levels: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            loaded: Mutex::default(),
            log: Mutex::default(),
            watch: Watch::default(),
        }
    }

    /// Whether the kernel says where its modules are.
    pub fn can_be_found(&self) -> bool {
        self.layout.is_some()
    }

    /// Learns how deep the kernel's page tables are, from any vCPU's registers.
    pub fn learn_paging(&self, registers: &Registers) {
        let five_levels = registers.cr4 & CR4_LA57 != 0;
        self.five_levels.store(five_levels, Ordering::Relaxed);
    }

    /// How often the modules that are known have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The modules as they were when the list was last read.
    pub fn loaded(&self) -> Arc<LoadedModules> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Brings `known` up to date, which a vCPU's thread keeps, without ever waiting.
    pub fn follow(&self, known: &mut KnownModules) {
        let generation = self.generation();
        if known.generation != generation
            && let Ok(loaded) = self.loaded.try_lock()
        {
            // Whoever replaced it keeps the old one for as long as it is in use: nothing is freed here.
            known.loaded = Arc::clone(&loaded);
            known.generation = generation;
        }
    }

    /// Whether `loaded` is how the list is now. If it isn't, asks for it to be read.
    pub fn check<M: PhysicalMemory>(
        &self,
        memory: &M,
        placement: Placement,
        loaded: &LoadedModules,
    ) -> bool {
        let Some(layout) = &self.layout else {
            return true;
        };
        let sign = sign(layout, memory, placement);
        let is_current = sign.is_some() && sign == loaded.sign();
        if !is_current || !loaded.is_settled() {
            self.watch.request();
        }
        is_current
    }

    /// Whether all modules of `loaded` that `frames` lie in are still there: their structures say what they said.
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
            is_known || module.facts.still_hold(layout, view)
        })
    }

    /// Functions of modules that were learned of after the first `known` bytes of such text.
    pub fn functions_after(&self, known: u64) -> Option<NewFunctions> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.after(known)
    }

    /// Reads the list, unless it is as it was.
    pub(crate) fn read<M: PhysicalMemory>(&self, linux: &LinuxKnowledge, memory: &M) {
        let (Some(layout), Some(placement)) = (&self.layout, linux.placement.get()) else {
            return;
        };
        let registers = self.kernel_registers(layout, placement);
        let view = KernelView::new(linux, placement, memory, &registers);
        let before = self.loaded();
        let mut loaded = Arc::clone(&before);
        for _ in 0..MAX_TRIES {
            let sign = sign(layout, memory, placement);
            if sign.is_none() || (sign == loaded.sign() && loaded.is_settled()) {
                break;
            }
            let format = linux.orc.as_ref().map(|orc| orc.format());
            let head = layout.head.wrapping_add(placement.slide);
            loaded = Arc::new(LoadedModules::read(
                layout, &view, head, format, sign, &loaded,
            ));
            if sign == self::sign(layout, memory, placement) {
                self.publish(loaded, &before);
                break;
            }
        }
    }

    /// Makes `loaded` known, instead of `before`.
    fn publish(&self, loaded: Arc<LoadedModules>, before: &Arc<LoadedModules>) {
        let new = loaded.not_in(before);
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.add(new.iter().map(|module| Entry::new(module)));
        log.retire(Arc::clone(before));
        drop(log);
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Registers that select the kernel's own page tables, which have all modules at any time.
    fn kernel_registers(&self, layout: &ModuleLayout, placement: Placement) -> Registers {
        let five_levels = self.five_levels.load(Ordering::Relaxed);
        Registers {
            cr0: CR0_PG,
            cr3: placement.physical(layout.page_tables).0,
            cr4: if five_levels { CR4_LA57 } else { 0 },
            efer: EFER_LMA,
            ..Registers::default()
        }
    }
}

/// What one vCPU's thread knows of the modules.
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

/// What the list looks like now.
fn sign<M: PhysicalMemory>(
    layout: &ModuleLayout,
    memory: &M,
    placement: Placement,
) -> Option<ListSign> {
    let head = placement.physical(layout.head);
    let previous = placement.physical(layout.head.wrapping_add(8));
    let mut changes = [0; 4];
    if let Some(address) = layout.changes {
        memory.read_physical(placement.physical(address), &mut changes)?;
    }
    Some(ListSign {
        ends: [read_u64(memory, head)?, read_u64(memory, previous)?],
        changes: u32::from_le_bytes(changes),
    })
}
