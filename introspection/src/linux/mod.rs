//! Linux guests: the knowledge from the kernel's image, and the place of the running kernel.

mod build_files;
mod cpu;
mod cpu_places;
mod entry_code;
mod from_kernel_image;
mod gaps;
#[cfg(test)]
mod initcall_tests;
mod kernel_watch;
mod locks;
mod modes;
mod modules;
mod placement;
mod process_list;
mod processes;
mod running;
#[cfg(test)]
mod running_tests;
mod runtimes;
mod stacks;
mod task_layout;
mod tasks;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod user_stack_tests;
mod view;
mod vmcoreinfo;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::GuestAddress;

use crate::{PhysicalMemory, Registers, Symbols};

use crate::unwind::{CodeRules, Initcalls, MODULES, OrcTable, ReturnHooks};
use entry_code::EntryCode;
use gaps::Gaps;
use kvmprof_paging::{AddressSpace, read_u64};
use locks::LockLoops;
use placement::{Placement, PlacementCell};
use process_list::RequestedList;
use processes::{InstanceLayout, MapBudget, ProcessLayout, VdsoPlace};
use task_layout::{Addresses, TaskLayout};
use tasks::TaskListLayout;

pub use build_files::BuildFiles;
pub use cpu::Cpu;
pub use from_kernel_image::{kernel_symbols, release as kernel_release, release_of_file};
pub use kernel_watch::{KernelPulse, KernelWatch};
pub use modules::{ModuleOmissions, Modules, NewFunctions};
pub use process_list::ReadProcesses;
pub use processes::{
    Area, Backing, FileIdentity, GuestProcesses, ListedProcess, MappedFile, PerfMapPlace,
    ProcessFate, ProcessInstance, ProcessMap, ProcessOrigin, UnwinderSlot, labels_of_group,
};
pub use runtimes::{
    ProcessMemory, ProcessRuntime, ProgramFile, Runtime, SpaceMemory, hotspot_of_jdk_25,
    python_of_version, recognize as recognize_runtime, v8_of_node,
};
pub use stacks::find as kernel_orc;
pub use tasks::{TaskReader, TaskScope};
pub use vmcoreinfo::{VMCOREINFO_BYTES, VmcoreinfoSearch};

/// The start of the kernel's mapping (`__START_KERNEL_map`, `arch/x86/include/asm/page_64_types.h`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// Maximum length of the kernel's mapping, in bytes (`KERNEL_IMAGE_SIZE`).
const KERNEL_MAP_LENGTH: u64 = 1 << 30;
/// The start of the direct mapping of all memory without CONFIG_DYNAMIC_MEMORY_LAYOUT, for 4 and 5 levels of page
/// tables (`Documentation/arch/x86/x86_64/mm.rst`).
const FIXED_DIRECT_MAPS: [u64; 2] = [0xffff_8880_0000_0000, 0xff11_0000_0000_0000];
/// `PANIC_CPU_INVALID` (`include/linux/panic.h`).
const NO_PANIC_CPU: i32 = -1;
/// The start of the kernel's banner (`init/version-timestamp.c`).
const BANNER_START: &[u8] = b"Linux version ";
/// Maximum number of bytes of the banner that are compared.
const MAX_BANNER: usize = 128;

/// The knowledge from a Linux kernel's image, and from the running kernel.
#[derive(Debug)]
pub struct LinuxKnowledge {
    release: String,
    symbols: Symbols,
    /// The image's link-time addresses.
    image: Range<u64>,
    /// The start of `linux_banner`.
    banner: Vec<u8>,
    addresses: Addresses,
    tasks: TaskLayout,
    /// The unwind tables, if the kernel has them.
    orc: Option<OrcTable>,
    /// How its code unwinds, if it has neither unwind tables nor frame pointers.
    rules: Option<Arc<CodeRules>>,
    /// The table of initcalls, if it is known.
    initcalls: Option<Initcalls>,
    return_hooks: ReturnHooks,
    /// Where the user's registers may be saved in part, if it is known.
    entry_code: Option<EntryCode>,
    /// The offsets for reading processes' mappings, if known.
    processes: Option<ProcessLayout>,
    /// Limits the maps of processes that are passed on.
    map_budget: MapBudget,
    /// The offsets for distinguishing processes, if known.
    instances: Option<InstanceLayout>,
    /// The layout of the list of all tasks, if known.
    task_list: Option<TaskListLayout>,
    locks: LockLoops,
    build_id: String,
    placement: PlacementCell,
    /// The start of the direct mapping of all memory, 0 while unknown (`page_offset_base`).
    direct_map: AtomicU64,
    vdso_place: VdsoPlace,
    modules: Modules,
    process_list: RequestedList,
    gaps: Gaps,
}

impl LinuxKnowledge {
    /// Leaves out the command lines of processes.
    pub(super) fn leave_out_arguments(&mut self) {
        if let Some(layout) = &mut self.processes {
            layout.labels.leave_out_arguments();
        }
    }

    /// The kernel's release, as `uname -r` prints it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The kernel's build id in hexadecimal; empty if it has none.
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// What isn't known of this kernel, and why: a sentence each. Empty for a kernel that describes itself.
    pub fn gaps(&self) -> &[String] {
        self.gaps.lines()
    }

    /// The kernel's symbols, by link-time address.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// The kernel's unwind table, if it has one in a known format.
    pub fn orc(&self) -> Option<&OrcTable> {
        self.orc.as_ref()
    }

    /// The modules of the running kernel.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// The link-time addresses of the kernel's image.
    pub fn image(&self) -> Range<u64> {
        self.image.clone()
    }

    /// The kernel function at guest virtual address `address`, and the offset within it. `None` outside the kernel's
    /// image, and while the slide is unknown.
    pub fn function_at(&self, address: u64) -> Option<(&str, u64)> {
        let linked = address.wrapping_sub(self.slide()?);
        self.image
            .contains(&linked)
            .then(|| self.symbols.function_at(linked))?
    }

    /// The slide, in bytes, once it is known.
    pub fn slide(&self) -> Option<u64> {
        self.placement.get().map(|placement| placement.slide)
    }

    /// Whether the kernel has panicked: its `panic_cpu` names a CPU. Distinguishes a panic's reset from a reboot. `None`
    /// while the slide is unknown.
    pub fn has_panicked<M: PhysicalMemory>(&self, memory: &M) -> Option<bool> {
        let placement = self.placement.get()?;
        let cpu = memory.read_array(placement.physical(self.addresses.panic_cpu?))?;
        Some(i32::from_le_bytes(cpu) != NO_PANIC_CPU)
    }

    /// A line in the form of `/proc/kallsyms` for the guest's address `address`, which is in a variable of the kernel's
    /// image. The name in it is `VARIABLE`, or `VARIABLE+0xOFFSET`. `None` if no variable is there, or that is unknown.
    pub fn variable(&self, address: u64) -> Option<String> {
        let linked = address.wrapping_sub(self.slide()?);
        let (name, offset) = self.symbols.variable_at(linked)?;
        let is_sound =
            self.image.contains(&linked) && name.bytes().all(|byte| byte.is_ascii_graphic());
        let place = match offset {
            0 => name.to_owned(),
            _ => format!("{name}+{offset:#x}"),
        };
        is_sound.then(|| format!("{address:016x} d {place}\n"))
    }

    /// The kernel's placement. Finds it from one vCPU's registers if it isn't known yet. Every sample does so too.
    pub fn locate<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
    ) -> Option<Placement> {
        self.placement.get().or_else(|| {
            let space = AddressSpace::new(memory, registers);
            let placement = self.find(&space, registers)?;
            self.modules.note_paging(registers);
            self.placement.set(placement);
            Some(placement)
        })
    }

    /// Whether the kernel has its driver for ACPI power buttons (`drivers/acpi/button.c`), built in or as a module. A
    /// module is found only after the slide is known.
    pub fn hears_power_button<M: PhysicalMemory>(&self, memory: &M) -> bool {
        let is_built_in = self.symbols.address_of("acpi_button_notify").is_some();
        is_built_in || self.modules.has(self, memory, "button") == Some(true)
    }

    /// Forgets what was found in the running kernel, which restarts, possibly elsewhere in memory. Keeps what comes from
    /// its image. No vCPU may run meanwhile, or use earlier results afterwards.
    pub fn forget_running(&self) {
        self.placement.forget();
        self.direct_map.store(0, Ordering::Relaxed);
        self.modules.forget();
        if let Some(initcalls) = &self.initcalls {
            initcalls.forget();
        }
    }

    /// Sets the kernel's placement if the kernel has this `slide` on a vCPU with `registers`.
    fn locate_at<M: PhysicalMemory>(&self, memory: &M, registers: &Registers, slide: u64) {
        let space = AddressSpace::new(memory, registers);
        if let Some(placement) = self.verify(&space, slide) {
            self.modules.note_paging(registers);
            self.placement.set(placement);
        }
    }

    /// The processes, as a vCPU with `registers`, which runs the task at `running`, reads them. `None` while the slide is
    /// unknown, and if they can't be told from later ones.
    pub(crate) fn processes<'a, M: PhysicalMemory>(
        &'a self,
        memory: &'a M,
        registers: &Registers,
        running: Option<u64>,
    ) -> Option<GuestProcesses<'a, M>> {
        let view = self.view(memory, registers)?;
        Some(GuestProcesses::new(view, self.instances.as_ref()?, running))
    }

    /// All processes, each behind the one that has forked it. `None` if they are unknown: until the slide is known, and if there are more
    /// than 4096. Takes up to some ms for these. The guest may run meanwhile, and processes that are started or end meanwhile may be
    /// missing.
    pub fn list_processes<M: PhysicalMemory>(&self, memory: &M) -> Option<Vec<ListedProcess>> {
        let view = self.own_view(memory)?;
        GuestProcesses::new(view, self.instances.as_ref()?, None).all()
    }

    /// Whether `address` is in the range of modules and outside the kernel's image, which may reach into that range.
    fn is_module_code(&self, placement: Placement, address: u64) -> bool {
        let linked = address.wrapping_sub(placement.slide);
        MODULES.contains(&address) && !self.image.contains(&linked)
    }

    /// Finds the start of the direct mapping from a valid kernel pointer and the physical address that the page tables
    /// give for it.
    fn find_direct_map<M: PhysicalMemory>(
        &self,
        memory: &M,
        placement: Placement,
        pointer: u64,
        physical: GuestAddress,
    ) {
        let variable = self
            .addresses
            .page_offset_base
            .and_then(|address| read_u64(memory, placement.physical(address)));
        let base = pointer.wrapping_sub(physical.0);
        let expected = match variable {
            Some(variable) => base == variable,
            None => FIXED_DIRECT_MAPS.contains(&base),
        };
        if expected && base >> 63 == 1 {
            self.direct_map.store(base, Ordering::Relaxed);
        }
    }
}
