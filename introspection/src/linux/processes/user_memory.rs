//! Checks whether the active page tables map the running task's user memory.
//!
//! In the kernel this isn't always so. A task switch first loads the next task's page tables, then its stack, and
//! finally makes it the current task (`context_switch`, `kernel/sched/core.c`). Exiting tasks and kernel threads run
//! with the page tables of an earlier task (lazy TLB, `Documentation/mm/active_mm.rst`). The kernel makes the same
//! check before it reads user memory in an NMI (`nmi_uaccess_okay`, `arch/x86/mm/tlb.c`).

use crate::PhysicalMemory;
use kvmprof_recording::StackEnd;

use super::process_layout::ProcessLayout;
use crate::Registers;
use crate::linux::view::KernelView;
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

/// The physical address of the page tables of the memory at `mm`; under KPTI, of the kernel's half.
pub fn page_tables<M: PhysicalMemory>(
    view: &KernelView<'_, M>,
    layout: &ProcessLayout,
    mm: u64,
) -> Option<u64> {
    let tables = view.u64(mm.wrapping_add(layout.address_space.pgd))?;
    Some(view.translate(tables)?.0)
}

impl UserMemory {
    /// The user memory of the task at kernel address `task`, on a vCPU with `registers`. `None` if the task is
    /// unreadable.
    pub fn from_task<M: PhysicalMemory>(
        view: &KernelView<'_, M>,
        layout: &ProcessLayout,
        registers: &Registers,
        task: u64,
    ) -> Option<Self> {
        let mm = view.u64(task.wrapping_add(layout.mm))?;
        if mm >> 63 == 0 {
            return Some(Self::Absent);
        }
        let own = page_tables(view, layout, mm)?;
        let loaded = registers.cr3 & FRAME;
        // Without KPTI, the page next to the tables may belong to another process. The user half of a pair doesn't map
        // the kernel's structures.
        let is_users_half = || loaded == own | PTI_USER && !view.is_mapped(task);
        if loaded == own || is_users_half() {
            Some(Self::Loaded(mm))
        } else {
            Some(Self::NotLoaded)
        }
    }

    /// Why the user part is missing in a stack of a task in the kernel with this memory. `None` if the user part can be
    /// unwound.
    pub fn end_of_stack<M: PhysicalMemory>(
        self,
        view: &KernelView<'_, M>,
        layout: &ProcessLayout,
    ) -> Option<StackEnd> {
        match self {
            Self::Absent => Some(StackEnd::Absent),
            Self::NotLoaded => Some(StackEnd::Broken),
            Self::Loaded(mm) => {
                // execve(2) first gives a task new memory, and finally sets the new program's code address. Until then,
                // the user's registers are those of the old program, whose memory no longer exists.
                let code = view.u64(mm.wrapping_add(layout.address_space.start_code));
                match code {
                    Some(0) => Some(StackEnd::Absent),
                    Some(_) => None,
                    None => Some(StackEnd::Broken),
                }
            }
        }
    }
}
