//! Call stacks of a vCPU that stands still: the kernel's by its own unwind tables, the user's by those of its
//! programs and libraries, or by frame pointers.
//!
//! Every walk is bounded in frames and reads, over memory of which nothing is believed: an address that
//! can't be what it should be ends the stack, which says so ([`StackEnd`]); nothing is guessed beyond that.

mod code_regions;
mod frame_pointer;
mod frame_rules;
mod kernel;
mod orc;
mod stack_memory;
#[cfg(test)]
mod tests;
mod unwind_table;
mod user;
#[cfg(test)]
mod user_tests;

use kvmprof_recording::{MAX_STACK_FRAMES, StackEnd, StackSummary};

use super::Registers;

pub(super) use code_regions::{CodeRegion, MODULES, ModuleCode};
pub(super) use kernel::KernelUnwinder;
pub(super) use orc::OrcFormat;
pub use orc::OrcTable;
pub(super) use stack_memory::{PagedMemory, StackMemory};
pub use unwind_table::UnwindTable;
pub(super) use user::UnwindCache;
pub use user::UserUnwinder;

/// Most frames of the kernel's part of a stack.
const MAX_KERNEL_FRAMES: usize = MAX_STACK_FRAMES / 2;

/// A call stack in the making, in a fixed place, so that taking one allocates nothing.
#[derive(Debug)]
pub struct Stack {
    frames: [u64; MAX_STACK_FRAMES],
    summary: StackSummary,
}

impl Default for Stack {
    fn default() -> Self {
        Self {
            frames: [0; MAX_STACK_FRAMES],
            summary: StackSummary::default(),
        }
    }
}

impl Stack {
    /// How many frames there are, and how each part ends.
    pub fn summary(&self) -> StackSummary {
        self.summary
    }

    /// The frames, innermost first: the kernel's, then the user's. The first is the program counter. Each
    /// one is an address inside the instruction that is being executed: of a caller, its last byte (the
    /// return address less one), of what was interrupted, the interrupted instruction's first.
    pub fn frames(&self) -> &[u64] {
        let length = self.summary.frames().min(MAX_STACK_FRAMES);
        &self.frames[..length]
    }

    /// Begins a new stack.
    pub fn clear(&mut self) {
        self.summary = StackSummary::default();
    }

    /// Adds a frame of the kernel's; false when there is no more room.
    fn push_kernel(&mut self, address: u64) -> bool {
        let index = usize::from(self.summary.kernel);
        if index >= MAX_KERNEL_FRAMES {
            return false;
        }
        self.frames[index] = address;
        self.summary.kernel += 1;
        true
    }

    /// Adds a frame of the user's, after all of the kernel's; false when there is no more room.
    fn push_user(&mut self, address: u64) -> bool {
        let index = self.summary.frames();
        let Some(place) = self.frames.get_mut(index) else {
            return false;
        };
        *place = address;
        self.summary.user += 1;
        true
    }

    /// Says how the kernel's part ends.
    pub(super) fn end_kernel(&mut self, end: StackEnd) {
        self.summary.kernel_end = end;
    }

    /// Says how the user's part ends, which has no frames.
    pub(super) fn end_user(&mut self, end: StackEnd) {
        self.summary.user_end = end;
    }

    /// Leaves only the innermost frame of the kernel's part.
    pub(super) fn forget_kernel(&mut self) {
        self.summary.kernel = self.summary.kernel.min(1);
        self.summary.kernel_end = StackEnd::Absent;
    }

    /// The program counter alone, of a vCPU at privilege level `cpl`, whose callers can't be found.
    pub(super) fn only(&mut self, pc: u64, cpl: u8, end: StackEnd) {
        self.clear();
        if cpl == 3 {
            self.push_user(pc);
            self.summary.user_end = end;
        } else {
            self.push_kernel(pc);
            self.summary.kernel_end = end;
        }
    }

    /// Adds the user's part, of code that runs with `start`, by the unwind information of its program if there is
    /// any, else by frame pointers.
    pub(super) fn walk_user(
        &mut self,
        start: &UserRegisters,
        tables: Option<(&UserUnwinder, &mut UnwindCache)>,
        memory: &mut impl StackMemory,
    ) {
        self.summary.user_end = match tables {
            _ if !start.is_64_bit => {
                self.push_user(start.ip);
                StackEnd::Unsupported
            }
            Some((unwinder, cache)) => {
                unwinder.walk(start, cache, memory, |address| self.push_user(address))
            }
            None => frame_pointer::walk(start, memory, |address| self.push_user(address)),
        };
    }
}

/// What a walk of a user's stack starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UserRegisters {
    /// The program counter.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, if it is one.
    pub bp: u64,
    /// Whether it is 64-bit code.
    pub is_64_bit: bool,
}

impl UserRegisters {
    /// Those of a vCPU in user mode.
    pub fn of(registers: &Registers) -> Self {
        Self {
            ip: registers.rip,
            sp: registers.rsp,
            bp: registers.rbp,
            is_64_bit: registers.is_64_bit_code,
        }
    }
}
