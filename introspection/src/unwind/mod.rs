//! Call stacks of a stopped vCPU. Those of Linux are unwound by its ORC tables, those of user code by the unwind tables
//! of its programs and libraries, or by frame pointers. Those of other guests are unwound by the unwind tables of their
//! image, or by frame pointers.
//!
//! Every walk is bounded in frames and reads. Memory is untrusted: an invalid address ends the stack with the matching
//! [`StackEnd`], and nothing is guessed.

mod calls;
mod code_regions;
mod code_rules;
mod frame_pointer;
mod framed_code;
mod go_frames;
mod image;
mod initcalls;
mod kernel;
mod language;
mod orc;
mod retpoline;
mod return_hooks;
mod row_rules;
#[cfg(test)]
mod row_tests;
mod signals;
mod stack_memory;
#[cfg(test)]
mod tests;
mod unwind_table;
mod user;
mod user_registers;
#[cfg(test)]
mod user_tests;

use kvmprof_recording::{DEFAULT_STACK_FRAMES, MAX_STACK_FRAMES, StackEnd, StackSummary};

use language::Placer;
use user::{MAX_READS, follows_system_call};

pub(super) use code_regions::{Callers, CodeRegion, MODULES, ModuleCode};
pub use code_rules::CodeRules;
pub(super) use framed_code::FramedCode;
pub(super) use image::{ImageTables, ImageUnwinder};
pub(super) use initcalls::Initcalls;
pub use kernel::KernelUnwinder;
pub use language::{BareFrame, CalledFrame, Executed, LanguageFrames, MAX_INLINED};
pub use orc::{Base, Kind, OrcFormat, OrcTable};
pub(super) use return_hooks::ReturnHooks;
pub(super) use stack_memory::StackMemory;
pub use stack_memory::{PagedMemory, StackCopy, StackSource};
pub use unwind_table::UnwindTable;
pub use user::{UnwindCache, UserUnwinder};
pub use user_registers::UserRegisters;

/// A call stack that is being unwound, of fixed size so that unwinding allocates nothing.
#[derive(Debug)]
pub struct Stack {
    frames: [u64; MAX_STACK_FRAMES],
    /// The number of usable frames, from 2 to [`MAX_STACK_FRAMES`].
    limit: usize,
    summary: StackSummary,
    /// The frames of a language on the same thread, which are put among the user's.
    language: LanguageFrames,
}

impl Default for Stack {
    /// A stack with room for [`DEFAULT_STACK_FRAMES`] frames.
    fn default() -> Self {
        Self::with_limit(DEFAULT_STACK_FRAMES)
    }
}

impl Stack {
    /// A stack with room for `limit` frames, half of them in the kernel. `limit` is brought into the range from 2 to
    /// [`MAX_STACK_FRAMES`].
    pub fn with_limit(limit: usize) -> Self {
        Self {
            frames: [0; MAX_STACK_FRAMES],
            limit: limit.clamp(2, MAX_STACK_FRAMES),
            summary: StackSummary::default(),
            language: LanguageFrames::with_limit(limit.clamp(2, MAX_STACK_FRAMES)),
        }
    }

    /// The number of frames, and how each part ends.
    pub fn summary(&self) -> StackSummary {
        self.summary
    }

    /// The frames, innermost first: the kernel's, the user's, then the host's. The first is the program counter. Each
    /// is an address inside the instruction that is being executed: a caller's last byte of its call (the return
    /// address minus one), or an interrupted instruction's first byte.
    pub fn frames(&self) -> &[u64] {
        let length = self.summary.frames().min(self.limit);
        &self.frames[..length]
    }

    /// Begins a new stack.
    pub fn clear(&mut self) {
        self.summary = StackSummary::default();
        self.language.clear();
    }

    /// The frames of a language that are put among the user's by the next [`Self::walk_user`].
    pub fn language(&mut self) -> &mut LanguageFrames {
        &mut self.language
    }

    /// Adds a kernel frame. False if there is no more room.
    fn push_kernel(&mut self, address: u64) -> bool {
        let index = usize::from(self.summary.kernel);
        if index >= self.limit / 2 {
            return false;
        }
        self.frames[index] = address;
        self.summary.kernel += 1;
        true
    }

    /// Adds a user frame, after all kernel frames. False if there is no more room.
    fn push_user(&mut self, address: u64) -> bool {
        push_user(&mut self.frames[..self.limit], &mut self.summary, address)
    }

    /// Adds frames of the host, as many as there is room for, if the stack has frames of the guest.
    pub fn push_host(&mut self, frames: &[u64]) {
        let begin = self.summary.frames();
        if begin == 0 {
            return;
        }
        let room = self.frames[..self.limit]
            .get_mut(begin..)
            .unwrap_or_default();
        for (place, frame) in room.iter_mut().zip(frames) {
            *place = *frame;
            self.summary.host += 1;
        }
    }

    /// Sets the end of the kernel part.
    pub(super) fn end_kernel(&mut self, end: StackEnd) {
        self.summary.kernel_end = end;
    }

    /// Sets the end of the user part, which has no frames.
    pub(super) fn end_user(&mut self, end: StackEnd) {
        self.summary.user_end = end;
    }

    /// Turns broken ends into truncated ones, because the words that follow weren't copied.
    pub(super) fn cut_short(&mut self) {
        for end in [&mut self.summary.kernel_end, &mut self.summary.user_end] {
            if *end == StackEnd::Broken {
                *end = StackEnd::Truncated;
            }
        }
    }

    /// Keeps only the innermost kernel frame.
    pub(super) fn forget_kernel(&mut self) {
        self.summary.kernel = self.summary.kernel.min(1);
        self.summary.kernel_end = StackEnd::Absent;
    }

    /// Makes the program counter of a vCPU at privilege level `cpl` the only frame.
    pub fn only(&mut self, pc: u64, cpl: u8, end: StackEnd) {
        self.clear();
        if cpl == 3 {
            self.push_user(pc);
            self.summary.user_end = end;
        } else {
            self.push_kernel(pc);
            self.summary.kernel_end = end;
        }
    }

    /// Adds the user part from `start` on, by the program's unwind information, or by frame pointers in code without it.
    pub fn walk_user(
        &mut self,
        start: &UserRegisters,
        tables: Option<(&UserUnwinder, &mut UnwindCache)>,
        memory: &mut impl StackMemory,
    ) {
        // The kernel executes the instruction before the program counter, if that is SYSCALL.
        let is_exact = start.is_exact || !follows_system_call(memory, start.at.ip);
        let start = &UserRegisters { is_exact, ..*start };
        self.summary.user_end = match tables {
            _ if !start.is_64_bit => {
                self.push_user(start.at.ip);
                StackEnd::Unsupported
            }
            Some((unwinder, cache)) => {
                let mut placer = Placer::new(&self.language);
                let frames = &mut self.frames[..self.limit];
                let summary = &mut self.summary;
                let end = unwinder.walk(start, cache, memory, |address, frame| {
                    placer.before(address, frame, |word| push_user(frames, summary, word))
                        && push_user(frames, summary, address)
                });
                match end {
                    StackEnd::Complete if !placer.is_whole() => StackEnd::Broken,
                    end => end,
                }
            }
            None => {
                let mut reads = MAX_READS;
                frame_pointer::walk(start, &mut reads, memory, |address| self.push_user(address))
            }
        };
    }
}

/// Adds a frame to the user's part of a stack, which has room for `frames`. False if there is no more room.
fn push_user(frames: &mut [u64], summary: &mut StackSummary, frame: u64) -> bool {
    let Some(slot) = frames.get_mut(summary.frames()) else {
        return false;
    };
    *slot = frame;
    summary.user += 1;
    true
}
