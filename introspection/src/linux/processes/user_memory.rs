//! Whether the user memory that the page tables in force map is that of the task that runs.
//!
//! In the kernel that isn't so at any moment: a switch of tasks first loads the next task's page tables, then its stack,
//! and makes it the current one last (`context_switch`, `kernel/sched/core.c`); a task that exits, and the kernel's own
//! threads, run with whatever was loaded before (lazy TLB, `Documentation/mm/active_mm.rst`). The kernel asks the same
//! question before it looks at user memory in an NMI (`nmi_uaccess_okay`, `arch/x86/mm/tlb.c`).

use crate::PhysicalMemory;
use kvmprof_recording::StackEnd;

use super::process_layout::ProcessLayout;
use crate::Registers;
use crate::linux::view::KernelView;
use crate::memory::{FRAME, PTI_USER};

/// The user memory of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserMemory {
    /// It has none: it is the kernel's own, or exits.
    Absent,
    /// It is what the page tables in force map: that of the `struct mm_struct` at this kernel address.
    Loaded(u64),
    /// The page tables in force are another one's.
    NotLoaded,
}

impl UserMemory {
    /// That of the task at kernel address `task`, on a vCPU with `registers`. `None` if it can't be read.
    pub fn of_task<M: PhysicalMemory>(
        view: &KernelView<'_, M>,
        layout: &ProcessLayout,
        registers: &Registers,
        task: u64,
    ) -> Option<Self> {
        let mm = view.u64(task.wrapping_add(layout.mm))?;
        if mm >> 63 == 0 {
            return Some(Self::Absent);
        }
        let own = view.u64(mm.wrapping_add(layout.address_space.pgd))?;
        let own = view.translate(own)?.0;
        let loaded = registers.cr3 & FRAME;
        // Without KPTI, the page beside the tables may well be another process's. The user's half of a pair doesn't
        // map the kernel's structures.
        let is_users_half = || loaded == own | PTI_USER && !view.is_mapped(task);
        if loaded == own || is_users_half() {
            Some(Self::Loaded(mm))
        } else {
            Some(Self::NotLoaded)
        }
    }

    /// How the user's part of a stack ends that leads through the kernel of a task with this memory: before its first
    /// frame. `None` if it can be walked.
    pub fn end_of_stack<M: PhysicalMemory>(
        self,
        view: &KernelView<'_, M>,
        layout: &ProcessLayout,
    ) -> Option<StackEnd> {
        match self {
            Self::Absent => Some(StackEnd::Absent),
            Self::NotLoaded => Some(StackEnd::Broken),
            Self::Loaded(mm) => {
                // execve(2) gives a task new memory, and says last where the new program's code is. Until then the
                // user's registers are those of the program before, whose memory is gone.
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
