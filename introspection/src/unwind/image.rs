//! Unwinds the stacks of a guest that isn't Linux, in the kernel and in user mode: by its image's unwind information,
//! and by frame pointers in code without it.
//!
//! Such a kernel is unknown except for the processor's part: at an interrupt or an exception, the processor pushes the
//! interrupted program counter and stack pointer (SDM volume 3, section 7.14.2). They lie where the interrupt handler
//! would have its return address, according to the handler's unwind information or frame pointer, and are recognized by
//! their form.

use std::sync::Arc;

use kvmprof_recording::StackEnd;

use super::calls::{Candidates, follows_call};
use super::stack_memory::{PagedMemory, StackMemory};
use super::unwind_table::Mapped;
use super::user::{MAX_READS, UnwindCache, UserUnwinder};
use super::user_registers::{FrameRegisters, UserRegisters};
use super::{Stack, StackSource, UnwindTable, frame_pointer};
use crate::{PhysicalMemory, Registers};
use kvmprof_paging::AddressSpace;

/// The privilege level of user mode.
const USER: u8 = 3;
/// Words of 8 bytes that the processor pushes above the interrupted program counter: CS, RFLAGS, RSP, SS.
const PUSHED: usize = 4;
/// Flags that are always 1, and those that are always 0 (SDM volume 1, figure 3-8).
const FLAGS_ONE: u64 = 1 << 1;
const FLAGS_ZERO: u64 = !0x3f_ffff | 1 << 3 | 1 << 5 | 1 << 15;

/// The unwind information of an ELF image, and the link-time places of its executable segments.
pub struct ImageTables {
    table: Arc<UnwindTable>,
    code: Vec<Mapped>,
}

impl ImageTables {
    /// The unwind information in the ELF file with contents `image`, if it has any.
    pub fn from_elf(image: &[u8]) -> Option<Self> {
        let (table, code) = UnwindTable::from_image(image)?;
        let table = Arc::new(table);
        Some(Self { table, code })
    }
}

/// Unwinds the stacks of one guest by its image.
#[derive(Debug, Default)]
pub struct ImageUnwinder {
    tables: Option<UserUnwinder>,
}

impl ImageUnwinder {
    /// The unwinder for an image with these `tables`, which runs `slide` bytes (wrapping) behind its link-time addresses. Without tables, frame
    /// pointers are used everywhere.
    pub fn new(tables: Option<&ImageTables>, slide: u64) -> Self {
        let tables = tables.map(|ImageTables { table, code }| {
            let moved = |address: u64| address.wrapping_add(slide);
            let mappings = code.iter().map(|(begin, end, offset)| {
                (moved(*begin), moved(*end), *offset, Arc::clone(table))
            });
            UserUnwinder::new(mappings)
        });
        Self { tables }
    }

    /// Unwinds the selected parts of the stack of `source`, of a vCPU that is or was stopped with `registers`. A part that leads outside the
    /// copies is truncated.
    pub fn unwind<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        source: StackSource<'_>,
        cache: &mut UnwindCache,
        stack: &mut Stack,
    ) {
        let StackSource { parts, copies } = source;
        let is_user = registers.cpl == USER;
        if !registers.is_64_bit_code {
            stack.only(registers.rip, registers.cpl, StackEnd::Unsupported);
            return;
        }
        if is_user && !parts.user {
            stack.only(registers.rip, registers.cpl, StackEnd::Absent);
            return;
        }
        let space = AddressSpace::new(memory, registers);
        let mut walk = Walk {
            tables: self.tables.as_ref(),
            cache,
            memory: PagedMemory::new(memory, |address| space.translate(address))
                .with_copies(copies),
            reads: MAX_READS,
            has_frames: false,
        };
        let start = Frame {
            at: UserRegisters::new(registers).at,
            is_exact: true,
            is_user,
        };
        let interrupted = match is_user {
            true => Some(start),
            false => {
                walk.memory.allow_both_halves(true);
                let user = walk.kernel(start, stack);
                if !parts.kernel {
                    stack.forget_kernel();
                }
                user.filter(|_| parts.user)
            }
        };
        if let Some(user) = interrupted {
            walk.memory.allow_both_halves(false);
            walk.has_frames = false;
            walk.user(user, stack);
        }
        if walk.memory.take_left_copies() {
            stack.cut_short();
        }
    }
}

/// One frame.
#[derive(Clone, Copy, Debug)]
struct Frame {
    at: FrameRegisters,
    /// Whether the instruction at the program counter was about to be executed; otherwise the program counter is a
    /// return address.
    is_exact: bool,
    is_user: bool,
}

impl Frame {
    /// An address inside this frame's current instruction.
    fn inside(&self) -> u64 {
        self.at.ip.wrapping_sub(u64::from(!self.is_exact))
    }
}

/// The state of unwinding one stack.
struct Walk<'a, 'm, M, T> {
    tables: Option<&'a UserUnwinder>,
    cache: &'a mut UnwindCache,
    memory: PagedMemory<'m, M, T>,
    /// Number of words that unwind information may still read.
    reads: u32,
    /// Whether the last frame was found by its frame pointer.
    has_frames: bool,
}

impl<M: PhysicalMemory, T: Fn(u64) -> Option<vm_memory::GuestAddress>> Walk<'_, '_, M, T> {
    /// Fills the kernel part of `stack`. Returns the user code from which the kernel was entered, if the stack leads there.
    fn kernel(&mut self, mut frame: Frame, stack: &mut Stack) -> Option<Frame> {
        let end = loop {
            if !stack.push_kernel(frame.inside()) {
                break StackEnd::Truncated;
            }
            match self.step(&frame) {
                Ok(next) if next.is_user => {
                    stack.end_kernel(StackEnd::Complete);
                    return Some(next);
                }
                Ok(next) => frame = next,
                Err(end) => break end,
            }
        };
        stack.end_kernel(end);
        None
    }

    /// Adds the user part of `stack`.
    fn user(&mut self, mut frame: Frame, stack: &mut Stack) {
        let end = loop {
            if !stack.push_user(frame.inside()) {
                break StackEnd::Truncated;
            }
            match self.step(&frame) {
                Ok(next) => frame = next,
                Err(end) => break end,
            }
        };
        stack.end_user(end);
    }

    /// The frame that called `frame`, or that the processor interrupted for it.
    fn step(&mut self, frame: &Frame) -> Result<Frame, StackEnd> {
        let tables = self.tables.filter(|tables| tables.covers(frame.inside()));
        let had_frames = std::mem::replace(&mut self.has_frames, tables.is_none());
        let at = match tables {
            Some(tables) => tables.step(
                &frame.at,
                frame.is_exact,
                self.cache,
                &mut self.reads,
                &mut self.memory,
            )?,
            None => match self.entered(frame) {
                Some(interrupted) => return Ok(interrupted),
                None => {
                    let (reads, memory) = (&mut self.reads, &mut self.memory);
                    frame_pointer::step(&frame.at, frame.is_exact, had_frames, reads, memory)?
                }
            },
        };
        if let Some(interrupted) = self.interrupted(frame, at) {
            return Ok(interrupted);
        }
        let is_sound = self.memory.may_use(at.ip)
            && at.sp > frame.at.sp
            && follows_call(&mut self.memory, at.ip);
        if !is_sound {
            return Err(StackEnd::Broken);
        }
        Ok(Frame {
            at,
            is_exact: false,
            is_user: frame.is_user,
        })
    }

    /// The code that the processor interrupted for `frame`, whose code has no unwind information, if the frame pointer
    /// leads there. An interrupt handler may begin as functions do, with `push %rbp; mov %rsp,%rbp`.
    fn entered(&mut self, frame: &Frame) -> Option<Frame> {
        let found = frame_pointer::linkage(frame.at.sp, frame.at.bp()?, &mut self.memory)?;
        let (reads, memory) = (&mut self.reads, &mut self.memory);
        let mut candidates = Candidates::new(frame.at.ip, found.back, reads, memory);
        (candidates.belong_to_no_frame(frame.at.sp..frame.at.bp()?, memory)).then_some(())?;
        let at = FrameRegisters::new(found.back, found.sp, Some(found.caller)).assumed();
        self.interrupted(frame, at)
    }

    /// The code that the processor interrupted for `frame`, if it did so. `at` has the registers of the caller, if
    /// `frame` were called.
    fn interrupted(&mut self, frame: &Frame, at: FrameRegisters) -> Option<Frame> {
        // Interrupts don't enter user mode.
        if frame.is_user {
            return None;
        }
        let mut pushed = [0; PUSHED];
        let mut place = at.sp;
        for word in &mut pushed {
            *word = self.memory.word(place)?;
            place = place.checked_add(8)?;
        }
        let [code, flags, sp, data] = pushed;
        let (is_user, is_level) = match code & 3 {
            0 => (false, true),
            3 => (true, data & 3 == 3),
            _ => (false, false),
        };
        let is_selector = |word: u64| u16::try_from(word).is_ok();
        let is_pushed = is_level
            && is_selector(code)
            && is_selector(data)
            && code > 3
            && flags & (FLAGS_ONE | FLAGS_ZERO) == FLAGS_ONE;
        // The interrupted program counter usually doesn't follow a call, so that it can't be checked in that way.
        is_pushed.then_some(Frame {
            at: FrameRegisters { sp, ..at },
            is_exact: true,
            is_user,
        })
    }
}
