//! Finds the kernel's unwind table, and unwinds stacks of Linux guests.

use crate::{PhysicalMemory, Registers, Symbols};
use kvmprof_recording::StackEnd;

use super::LinuxKnowledge;
use super::modules::LoadedModules;
use super::processes::ProcessView;
use super::runtimes::{ProcessRuntime, SpaceMemory};
use super::view::KernelView;
use crate::image::KernelImage;
use crate::unwind::{
    Executed, Initcalls, KernelUnwinder, MODULES, OrcFormat, OrcTable, PagedMemory, Stack,
    StackCopy, StackSource, UnwindCache, UserRegisters, UserUnwinder,
};
use kvmprof_paging::AddressSpace;

/// The unwind table in a kernel's image: in its sections, or between its symbols.
pub fn find(image: &KernelImage<'_>, symbols: &Symbols, release: &str) -> Option<OrcTable> {
    let (address, addresses) = image.part(
        ".orc_unwind_ip",
        symbols,
        ["__start_orc_unwind_ip", "__stop_orc_unwind_ip"],
    )?;
    let (_, entries) = image.part(
        ".orc_unwind",
        symbols,
        ["__start_orc_unwind", "__stop_orc_unwind"],
    )?;
    let format = OrcFormat::from_kernel(release, entries)?;
    OrcTable::parse(address, addresses, entries, format)
}

/// The table of initcalls in a kernel's image. `None` if the symbols or the image lack it, as after boot in a running
/// kernel, or if it has another form.
pub fn find_initcalls(image: &KernelImage<'_>, symbols: &Symbols) -> Option<Initcalls> {
    let names = ["do_one_initcall", "__initcall_start", "__initcall_end"];
    let [caller, start, stop] = symbols.addresses_of(names);
    let caller = caller?..symbols.address_after(caller?)?;
    let (start, entries) = image.between([start, stop])?;
    Initcalls::parse(caller, start, entries, symbols)
}

/// The running task, and the code outside the kernel's image that its stack may lead through.
pub struct KnownCode<'c> {
    /// The address of the task's `task_struct`; `None` if the running task is unknown.
    pub task: Option<u64>,
    /// The kernel's modules.
    pub modules: &'c LoadedModules,
    /// The programs and libraries of the process.
    pub user: Option<(&'c UserUnwinder, &'c mut UnwindCache)>,
    /// The runtime of the process's language, if it has one that is known.
    pub runtime: Option<&'c ProcessRuntime>,
}

/// A task that isn't on a CPU.
pub struct SwitchedTask {
    /// The address of its `task_struct`.
    pub task: u64,
    /// Its kernel stack pointer.
    pub sp: u64,
    /// Where new tasks start, link-time addresses.
    pub forked: [Option<u64>; 2],
}

impl LinuxKnowledge {
    /// Unwinds the stack of `source`, of a vCPU that is or was stopped with `registers` in `code`.
    pub fn unwind<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        source: StackSource<'_>,
        code: KnownCode<'_>,
        stack: &mut Stack,
    ) {
        let StackSource { parts, copies } = source;
        let user = if registers.cpl == 3 {
            Some(UserRegisters::new(registers))
        } else {
            let hidden = copies.filter(|_| registers.rsp == 0);
            let user = match hidden {
                Some(copies) => self.skip_kernel(memory, registers, &code, copies, stack),
                None => self.unwind_kernel(memory, registers, &code, copies, stack),
            };
            if !parts.kernel {
                stack.forget_kernel();
            }
            let end = user.and_then(|_| self.end_of_user_part(memory, registers, code.task));
            if let Some(end) = end.filter(|_| parts.user) {
                stack.end_user(end);
                return;
            }
            user
        };
        match user {
            Some(user) if parts.user => {
                // Stacks alone are copied.
                let runtime = code.runtime.filter(|_| copies.is_none());
                if let Some(runtime) = runtime {
                    runtime.walk(memory, registers, stack.language());
                }
                // The task's own list is another than when its stack was copied.
                let view = self.view(memory, registers).filter(|_| copies.is_none());
                let true_return = |back, place| {
                    let (view, task) = (view.as_ref()?, code.task?);
                    let word = |address| view.u64(address);
                    (self.return_hooks).true_address_in_program((back, place), task, word)
                };
                let space = AddressSpace::new(memory, registers);
                let mut of_process = SpaceMemory::new(memory, &space);
                let mut executed = |frame| {
                    let unknown = Executed::Unknown;
                    runtime.map_or(unknown, |runtime| runtime.executed(frame, &mut of_process))
                };
                let mut memory = PagedMemory::new(memory, |address| space.translate(address))
                    .with_copies(copies)
                    .with_true_return(&true_return)
                    .with_runtime(&mut executed);
                stack.walk_user(&user, code.user, &mut memory);
                if memory.take_left_copies() {
                    stack.cut_short();
                }
            }
            Some(_) if registers.cpl == 3 => stack.only(registers.rip, 3, StackEnd::Absent),
            _ => {}
        }
    }

    /// Why the user part of a stack is missing, if the task's user memory isn't mapped; `None` if it is mapped. `task`
    /// runs on a vCPU in the kernel with `registers`.
    fn end_of_user_part<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        task: Option<u64>,
    ) -> Option<StackEnd> {
        let Some(layout) = &self.processes else {
            return Some(StackEnd::Unsupported);
        };
        let (Some(view), Some(task)) = (self.view(memory, registers), task) else {
            return Some(StackEnd::Broken);
        };
        let processes = ProcessView::new(&view, layout);
        match processes.user_memory(registers, task) {
            Some(user_memory) => processes.end_of_stack(user_memory),
            None => Some(StackEnd::Broken),
        }
    }

    /// The unwinder for the stack of `task` of this kernel, which has this `slide` and these `modules`.
    fn kernel_unwinder<'a>(
        &'a self,
        modules: &'a LoadedModules,
        slide: u64,
        task: Option<u64>,
    ) -> KernelUnwinder<'a> {
        KernelUnwinder {
            orc: self.orc.as_ref(),
            rules: self.rules.as_deref(),
            modules: Some(modules.code()),
            initcalls: self.initcalls.as_ref(),
            slide,
            image: self.image.clone(),
            hooks: Some((&self.return_hooks, task)),
        }
    }

    fn unwind_kernel<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        code: &KnownCode<'_>,
        copies: Option<&[StackCopy<'_>]>,
        stack: &mut Stack,
    ) -> Option<UserRegisters> {
        let Some(placement) = self.locate(memory, registers) else {
            stack.only(registers.rip, registers.cpl, StackEnd::Unsupported);
            return None;
        };
        let modules = code.modules;
        let view = KernelView::new(self, placement, memory, registers);
        let unwinder = self.kernel_unwinder(modules, placement.slide, code.task);
        let mut stack_memory =
            PagedMemory::new(memory, |address| view.translate(address)).with_copies(copies);
        let walk = |unwinder: &KernelUnwinder<'_>, stack: &mut Stack| {
            let user = unwinder.walk(registers, &mut stack_memory, stack);
            if stack_memory.take_left_copies() {
                stack.cut_short();
            }
            user
        };
        self.walk_through_modules(&view, modules, unwinder, walk, stack)
    }

    /// The user registers that were saved when the kernel was entered, of a vCPU whose stack pointer isn't known: `copies` have them. The kernel part of `stack`
    /// is the program counter. `None` while they may be saved in part.
    fn skip_kernel<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        code: &KnownCode<'_>,
        copies: &[StackCopy<'_>],
        stack: &mut Stack,
    ) -> Option<UserRegisters> {
        stack.only(registers.rip, registers.cpl, StackEnd::Unsupported);
        let slide = self.placement.get()?.slide;
        let linked = registers.rip.wrapping_sub(slide);
        let entry = self.entry_code.as_ref()?;
        let is_saved = MODULES.contains(&registers.rip)
            || self.image.contains(&linked) && !entry.contains(linked);
        is_saved.then_some(())?;
        let saved = copies.iter().find(|copy| copy.address >> 63 == 1)?;
        let unwinder = self.kernel_unwinder(code.modules, slide, code.task);
        let mut stack_memory = PagedMemory::new(memory, |_| None).with_copies(Some(copies));
        unwinder.entered_from(saved.address, &mut stack_memory)
    }

    /// Unwinds the kernel part of the stack of `switched`. Reads the
    /// stack through the page tables of a vCPU, in the kernel or in user mode, with `registers`.
    pub(super) fn unwind_switched<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        switched: &SwitchedTask,
        modules: &LoadedModules,
        stack: &mut Stack,
    ) {
        let Some(view) = self.view(memory, registers) else {
            return;
        };
        let SwitchedTask { task, sp, forked } = *switched;
        let forked = forked.map(|address| address.map(|address| view.linked(address)));
        let unwinder = self.kernel_unwinder(modules, view.linked(0), Some(task));
        let mut stack_memory = PagedMemory::new(memory, |address| view.translate(address));
        let walk = |unwinder: &KernelUnwinder<'_>, stack: &mut Stack| {
            unwinder.walk_switched(sp, forked, &mut stack_memory, stack)
        };
        // A kernel thread has no user part, and that of other tasks isn't requested.
        let _ = self.walk_through_modules(&view, modules, unwinder, walk, stack);
    }

    /// Lets `walk` unwind a stack, and again without `modules` if it has led through a module that was unloaded meanwhile.
    fn walk_through_modules<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        modules: &LoadedModules,
        unwinder: KernelUnwinder<'_>,
        mut walk: impl FnMut(&KernelUnwinder<'_>, &mut Stack) -> Option<UserRegisters>,
        stack: &mut Stack,
    ) -> Option<UserRegisters> {
        let (memory, placement) = (view.memory(), view.placement());
        let user = walk(&unwinder, stack);
        let is_module_code = |frame: &u64| self.is_module_code(placement, *frame);
        let leads_through_modules = stack.frames().iter().any(is_module_code);
        if !leads_through_modules
            || self.modules().check(memory, placement, modules)
            || (self.modules()).still_has(view, modules, stack.frames())
        {
            return user;
        }
        // Another module with other frames may be at the address now.
        stack.clear();
        let unwinder = KernelUnwinder {
            modules: None,
            ..unwinder
        };
        walk(&unwinder, stack)
    }
}
