//! Checks whether the active page tables map the running task's user memory.
//!
//! In the kernel this isn't always so. A task switch first loads the next task's page tables, then its stack, and
//! finally makes it the current task (`context_switch`, `kernel/sched/core.c`). Exiting tasks and kernel threads run
//! with the page tables of an earlier task (lazy TLB, `Documentation/mm/active_mm.rst`). The kernel makes the same
//! check before it reads user memory in an NMI (`nmi_uaccess_okay`, `arch/x86/mm/tlb.c`).

use crate::{PhysicalMemory, Registers};
use kvmprof_recording::StackEnd;

use super::ProcessView;
use kvmprof_paging::{FRAME, PTI_USER};

/// The user memory of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserMemory {
    /// The task has none: it is a kernel thread, or exits.
    Absent,
    /// The active page tables map it. It belongs to the `struct mm_struct` at this kernel address.
    Loaded(u64),
    /// The active page tables belong to another task.
    NotLoaded,
}

impl<M: PhysicalMemory> ProcessView<'_, M> {
    /// The physical address of the page tables of the memory at `mm`; under KPTI, of the kernel's half.
    pub fn page_tables(&self, mm: u64) -> Option<u64> {
        let tables = mm.wrapping_add(self.layout.address_space.pgd);
        Some(self.view.translate(self.view.u64(tables)?)?.0)
    }

    /// The user memory of the task at kernel address `task`, on a vCPU with `registers`. `None` if the task is
    /// unreadable.
    pub fn user_memory(&self, registers: &Registers, task: u64) -> Option<UserMemory> {
        let mm = self.view.u64(task.wrapping_add(self.layout.mm))?;
        if mm >> 63 == 0 {
            return Some(UserMemory::Absent);
        }
        let own = self.page_tables(mm)?;
        let loaded = registers.cr3 & FRAME;
        // Without KPTI, the page next to the tables may belong to another process. The user half of a pair doesn't map
        // the kernel's structures.
        let is_users_half = || loaded == own | PTI_USER && !self.view.is_mapped(task);
        if loaded == own || is_users_half() {
            Some(UserMemory::Loaded(mm))
        } else {
            Some(UserMemory::NotLoaded)
        }
    }

    /// Why the user part is missing in a stack of a task in the kernel with this `memory`. `None` if the user part can be
    /// unwound.
    pub fn end_of_stack(&self, memory: UserMemory) -> Option<StackEnd> {
        match memory {
            UserMemory::Absent => Some(StackEnd::Absent),
            UserMemory::NotLoaded => Some(StackEnd::Broken),
            UserMemory::Loaded(mm) => {
                // execve(2) first gives a task new memory, and finally sets the new program's code address. Until then,
                // the user's registers are those of the old program, whose memory no longer exists.
                let code = mm.wrapping_add(self.layout.address_space.start_code);
                match self.view.u64(code) {
                    Some(0) => Some(StackEnd::Absent),
                    Some(_) => None,
                    None => Some(StackEnd::Broken),
                }
            }
        }
    }
}
