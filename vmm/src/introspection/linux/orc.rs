//! The unwind table in a kernel's image, and stacks of its guests.

use std::ops::Range;

use kvmprof_devices::profiling::StackEnd;
use vm_memory::GuestMemoryBackend;

use super::LinuxKnowledge;
use super::modules::LoadedModules;
use super::view::KernelView;
use crate::introspection::Registers;
use crate::introspection::image::Vmlinux;
use crate::introspection::paging::AddressSpace;
use crate::introspection::stack::{
    KernelUnwinder, OrcFormat, OrcTable, PagedMemory, Stack, StackWish, UnwindCache, UserRegisters,
    UserUnwinder,
};
use crate::introspection::symbols::Symbols;

/// The kernel's unwind table: in its sections, or between its symbols.
pub fn find(vmlinux: &Vmlinux<'_>, symbols: &Symbols, release: &str) -> Option<OrcTable> {
    let part = |section: &[u8], bounds: Range<&str>| {
        vmlinux.linked_section(section).or_else(|| {
            let [start, stop] = symbols.addresses_of([bounds.start, bounds.end]);
            let length = usize::try_from(stop?.checked_sub(start?)?).ok()?;
            Some((start?, vmlinux.bytes_from(start?)?.get(..length)?))
        })
    };
    let (address, addresses) = part(
        b".orc_unwind_ip",
        "__start_orc_unwind_ip".."__stop_orc_unwind_ip",
    )?;
    let (_, entries) = part(b".orc_unwind", "__start_orc_unwind".."__stop_orc_unwind")?;
    let format = OrcFormat::of_kernel(release, entries)?;
    OrcTable::parse(address, addresses, entries, format)
}

/// What is known of the code that a stack may lead through, besides the kernel's own.
pub struct KnownCode<'c> {
    /// The kernel's modules.
    pub modules: &'c LoadedModules,
    /// The programs and libraries of the process.
    pub user: Option<(&'c UserUnwinder, &'c mut UnwindCache)>,
}

impl LinuxKnowledge {
    /// Takes the wanted parts of the stack of a vCPU that stands still with `registers`, and executes `code`.
    pub fn unwind<M: GuestMemoryBackend>(
        &self,
        memory: &M,
        registers: &Registers,
        wish: StackWish,
        code: KnownCode<'_>,
        stack: &mut Stack,
    ) {
        let user = if registers.cpl == 3 {
            Some(UserRegisters::of(registers))
        } else {
            let user = self.unwind_kernel(memory, registers, code.modules, stack);
            if !wish.kernel {
                stack.forget_kernel();
            }
            user
        };
        match user {
            Some(user) if wish.user => {
                let space = AddressSpace::new(memory, registers);
                let mut memory = PagedMemory::new(memory, |address| space.translate(address));
                stack.walk_user(&user, code.user, &mut memory);
            }
            Some(_) if registers.cpl == 3 => stack.only(registers.rip, 3, StackEnd::Absent),
            _ => {}
        }
    }

    fn unwind_kernel<M: GuestMemoryBackend>(
        &self,
        memory: &M,
        registers: &Registers,
        modules: &LoadedModules,
        stack: &mut Stack,
    ) -> Option<UserRegisters> {
        let Some(placement) = self.locate(memory, registers) else {
            stack.only(registers.rip, registers.cpl, StackEnd::Unsupported);
            return None;
        };
        let view = KernelView::new(self, placement, memory, registers);
        let unwinder = KernelUnwinder {
            orc: self.orc.as_ref(),
            modules: Some(modules.code()),
            slide: placement.slide,
            image: self.image.clone(),
        };
        let mut stack_memory = PagedMemory::new(memory, |address| view.translate(address));
        let user = unwinder.walk(registers, &mut stack_memory, stack);
        let is_module_code = |frame: &u64| self.is_module_code(placement, *frame);
        let leads_through_modules = stack.frames().iter().any(is_module_code);
        if !leads_through_modules
            || self.modules().check(memory, placement, modules)
            || (self.modules()).still_has(&view, modules, stack.frames())
        {
            return user;
        }
        // Another module may be there by now, whose frames are others.
        stack.clear();
        let unwinder = KernelUnwinder {
            modules: None,
            ..unwinder
        };
        unwinder.walk(registers, &mut stack_memory, stack)
    }
}
