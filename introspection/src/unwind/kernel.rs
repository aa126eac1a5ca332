//! Unwinds the kernel part of a stack: by ORC; in a kernel without ORC by frame pointers, or by its code.
//!
//! A kernel with ORC uses RBP for other values, so a stack is broken where neither the kernel nor a module has an entry.

use std::ops::Range;

use kvmprof_recording::StackEnd;

use super::code_regions::{MODULES, ModuleCode};
use super::initcalls::Initcalls;
use super::orc::{Base, Kind, OrcEntry, OrcFormat};
use super::return_hooks::ReturnHooks;
use super::stack_memory::StackMemory;
use super::user_registers::FrameRegisters;
use super::{CodeRules, OrcTable, Stack, UserRegisters, retpoline};
use crate::Registers;

/// Maximum number of times that a stack continues at a lower address: each interrupt, exception and NMI has a stack of
/// its own.
const MAX_SWITCHES: u8 = 8;
/// Maximum distance between two frames, in bytes: a whole stack (`THREAD_SIZE`, `IRQ_STACK_SIZE`, 16 KiB; twice that
/// with KASAN).
const MAX_FRAME: u64 = 32 << 10;
/// A task's stack ends at a multiple of this (a part of `THREAD_SIZE`, `arch/x86/include/asm/page_64_types.h`).
const STACK_ALIGNMENT: u64 = 16 << 10;
/// The code segment of 64-bit user code (`__USER_CS`, `arch/x86/include/asm/segment.h`).
const USER_CS: u64 = 0x33;

/// Offsets of registers in `struct pt_regs`, in bytes (`arch/x86/include/asm/ptrace.h`).
mod saved {
    use super::super::user_registers::number;

    pub const R13: u64 = 16;
    pub const BP: u64 = 32;
    pub const R11: u64 = 48;
    pub const R10: u64 = 56;
    pub const AX: u64 = 80;
    pub const CX: u64 = 88;
    pub const DX: u64 = 96;
    pub const DI: u64 = 112;
    /// The number of the system call, -1 if there is none.
    pub const ORIG_AX: u64 = 120;
    /// The places of general registers other than the stack pointer, by their numbers in user code's tables.
    pub const GENERAL: [(u16, u64); 15] = [
        (number::R15, 0),
        (number::R15 - 1, 8),
        (number::R15 - 2, R13),
        (number::R12, 24),
        (number::RBP, BP),
        (number::RBX, 40),
        (number::R8 + 3, R11),
        (number::R8 + 2, R10),
        (number::R8 + 1, 64),
        (number::R8, 72),
        (number::RAX, AX),
        (number::RCX, CX),
        (number::RDX, DX),
        (number::RSI, 104),
        (number::RDI, DI),
    ];
    /// The first of the registers that the processor itself saves.
    pub const IP: u64 = 128;
    pub const CS: u64 = 136;
    pub const FLAGS: u64 = 144;
    pub const SP: u64 = 152;
    /// Bytes of the whole structure.
    pub const LENGTH: u64 = 168;
}

/// Offsets in `struct inactive_task_frame`, in bytes (`arch/x86/include/asm/switch_to.h`).
mod switched {
    pub const BP: u64 = 40;
    pub const RETURN: u64 = 48;
    /// Bytes of the whole structure.
    pub const LENGTH: u64 = 56;
}

/// Unwinds the stacks of one kernel.
#[derive(Debug)]
pub struct KernelUnwinder<'a> {
    /// Its unwind table, if it has one.
    pub orc: Option<&'a OrcTable>,
    /// Without one, the rules that its code gives, unless it has frame pointers.
    pub rules: Option<&'a CodeRules>,
    /// The known code of its modules.
    pub modules: Option<&'a ModuleCode>,
    /// Its table of initcalls, if it is known.
    pub initcalls: Option<&'a Initcalls>,
    /// The kernel's slide, in bytes.
    pub slide: u64,
    /// The link-time addresses of its image.
    pub image: Range<u64>,
    /// Where it keeps replaced return addresses, and the task whose stack is unwound, if it is known.
    pub hooks: Option<(&'a ReturnHooks, Option<u64>)>,
}

/// One frame: the known registers there.
#[derive(Clone, Copy, Debug)]
struct Frame {
    ip: u64,
    sp: u64,
    bp: u64,
    /// Further registers, if they are known.
    others: Option<Others>,
    /// Whether `ip` is an instruction that was about to be executed, not a return address.
    is_exact: bool,
}

/// Registers that a call may change, but that unwind entries may refer to.
#[derive(Clone, Copy, Debug)]
struct Others {
    ax: u64,
    dx: u64,
    di: u64,
    r10: u64,
    r13: u64,
}

#[expect(
    clippy::large_enum_variant,
    reason = "it lives for one step, and nothing is allocated at a tick"
)]
enum Step {
    Kernel(Frame),
    User(UserRegisters),
    End(StackEnd),
}

impl KernelUnwinder<'_> {
    /// Fills the kernel part of `stack`, of a vCPU in the kernel with `registers`. Returns the user registers to
    /// continue with, if the stack leads to user code.
    pub fn walk(
        &self,
        registers: &Registers,
        memory: &mut impl StackMemory,
        stack: &mut Stack,
    ) -> Option<UserRegisters> {
        let frame = Frame {
            ip: registers.rip,
            sp: registers.rsp,
            bp: registers.rbp,
            others: Some(Others {
                ax: registers.rax,
                dx: registers.rdx,
                di: registers.rdi,
                r10: registers.r10,
                r13: registers.r13,
            }),
            is_exact: true,
        };
        self.walk_from(frame, self.initcalls, memory, stack)
    }

    /// Fills the kernel part of `stack`, of a task that isn't on a CPU. `sp` is the stack pointer that
    /// `__switch_to_asm` has saved in the task. A task that has never run will start at one of `forked`.
    pub fn walk_switched(
        &self,
        sp: u64,
        forked: [Option<u64>; 2],
        memory: &mut impl StackMemory,
        stack: &mut Stack,
    ) -> Option<UserRegisters> {
        let mut read = |offset: u64| memory.word(sp.wrapping_add(offset));
        let (Some(bp), Some(ip)) = (read(switched::BP), read(switched::RETURN)) else {
            stack.end_kernel(StackEnd::Broken);
            return None;
        };
        let is_exact = forked.contains(&Some(ip));
        if !self.is_code(if is_exact { ip } else { ip.wrapping_sub(1) }) {
            stack.end_kernel(StackEnd::Broken);
            return None;
        }
        let frame = Frame {
            ip,
            sp: sp.wrapping_add(switched::LENGTH),
            bp,
            others: None,
            is_exact,
        };
        // Another vCPU may run the task meanwhile. Its frames would then be of different times, and the initcalls would
        // learn wrong values.
        let initcalls = self.initcalls.filter(|known| known.has_learned());
        self.walk_from(frame, initcalls, memory, stack)
    }

    fn walk_from(
        &self,
        mut frame: Frame,
        initcalls: Option<&Initcalls>,
        memory: &mut impl StackMemory,
        stack: &mut Stack,
    ) -> Option<UserRegisters> {
        let mut switches = 0;
        let mut callee = None;
        let mut initcalls = initcalls.filter(|_| self.orc.is_some());
        loop {
            let step = self.step(&frame, memory);
            let ended = self.ended_initcall(&frame, callee, &step, &mut initcalls, memory);
            let mut frames = ended.into_iter().chain([frame.inside()]);
            if !frames.all(|address| stack.push_kernel(address)) {
                stack.end_kernel(StackEnd::Truncated);
                return None;
            }
            match step {
                Step::User(user) => {
                    stack.end_kernel(StackEnd::Complete);
                    return Some(user);
                }
                Step::End(end) => {
                    stack.end_kernel(end);
                    return None;
                }
                Step::Kernel(next) => {
                    switches += u8::from(next.sp <= frame.sp);
                    if switches > MAX_SWITCHES {
                        stack.end_kernel(StackEnd::Broken);
                        return None;
                    }
                    callee = Some(frame.inside());
                    frame = next;
                }
            }
        }
    }

    fn step(&self, frame: &Frame, memory: &mut impl StackMemory) -> Step {
        let step = match (self.orc, self.rules) {
            (None, None) => self.by_frame_pointer(frame, memory),
            _ => self
                .entry(frame)
                .and_then(|(entry, format)| self.by_entry(entry, format, frame, memory)),
        };
        step.unwrap_or(Step::End(StackEnd::Broken))
    }

    /// The address of the initcall that `frame`, one of `do_one_initcall`, has called, if the initcall has ended by a
    /// jump to `callee`. `step` leads to the frame's caller. Clears `initcalls` at the first such frame of a stack, so
    /// that only one frame of a stack is searched.
    fn ended_initcall(
        &self,
        frame: &Frame,
        callee: Option<u64>,
        step: &Step,
        initcalls: &mut Option<&Initcalls>,
        memory: &mut impl StackMemory,
    ) -> Option<u64> {
        let linked = |address: u64| address.wrapping_sub(self.slide);
        let Step::Kernel(caller) = step else {
            return None;
        };
        if frame.is_exact || caller.is_exact {
            return None;
        }
        let known = initcalls.filter(|it| it.calls_at(linked(frame.inside())))?;
        *initcalls = None;
        // The words between the frame's end and its return address.
        let length = caller.sp.checked_sub(frame.sp)?.checked_sub(8)?;
        if length > Initcalls::MAX_FRAME {
            return None;
        }
        let words = (0..length)
            .step_by(8)
            .map(|offset| memory.word(frame.sp.wrapping_add(offset)).map(linked));
        let begin = known.ended(linked(frame.ip), linked(callee?), words)?;
        Some(begin.wrapping_add(self.slide))
    }

    /// The entry for `frame`, from the kernel's table or rules, or those of a module.
    fn entry(&self, frame: &Frame) -> Option<(OrcEntry, OrcFormat)> {
        let mut linked = frame.inside().wrapping_sub(self.slide);
        if !self.image.contains(&linked) {
            let modules = self.modules?;
            match modules.original(frame.inside()) {
                Some(original) => linked = original,
                None => return modules.find(frame.ip, frame.is_exact),
            }
        }
        match self.orc {
            Some(orc) => Some((orc.find(linked)?, orc.format())),
            None => {
                let ip = linked.wrapping_add(u64::from(!frame.is_exact));
                Some((self.rules?.entry(ip, frame.is_exact)?, OrcFormat::DERIVED))
            }
        }
    }

    fn by_entry(
        &self,
        entry: OrcEntry,
        format: OrcFormat,
        frame: &Frame,
        memory: &mut impl StackMemory,
    ) -> Option<Step> {
        let sp = match entry.kind {
            Kind::Undefined | Kind::End => return self.without_entry(entry.kind, frame, memory),
            _ => frame.caller_sp(entry, format.offset_first, memory)?,
        };
        let may_return = frame.is_exact && sp == frame.sp.wrapping_add(8);
        let sp = match may_return && retpoline::is_at_end(memory, frame.ip) {
            true => sp.wrapping_add(8),
            false => sp,
        };
        let bp = match entry.bp {
            Base::CallerSp => memory.word(sp.wrapping_add_signed(entry.bp_offset.into())),
            Base::Bp => memory.word(frame.bp.wrapping_add_signed(entry.bp_offset.into())),
            _ => Some(frame.bp),
        };
        match entry.kind {
            Kind::Registers => self.interrupted(sp, None, memory),
            Kind::ProcessorFrame => {
                self.interrupted(sp.wrapping_sub(saved::IP), Some(frame), memory)
            }
            _ => self.called(memory.word(sp.wrapping_sub(8))?, sp, bp?, memory),
        }
    }

    /// The end of a stack, or of the known code. Kernels also mark thunks in this way.
    fn without_entry(
        &self,
        kind: Kind,
        frame: &Frame,
        memory: &mut impl StackMemory,
    ) -> Option<Step> {
        if frame.is_exact {
            if let Some(at) = retpoline::return_address_at(memory, frame.ip, frame.sp) {
                let back = memory.word(at)?;
                return self.called(back, at.wrapping_add(8), frame.bp, memory);
            }
            if memory.word(frame.sp).is_some_and(|back| self.is_code(back)) {
                return None;
            }
        }
        (kind == Kind::End).then_some(Step::End(StackEnd::Complete))
    }

    /// The interrupted code's registers, saved at `at`: all of them, or only those that the processor saves, if the
    /// others still have their values in `live`.
    fn interrupted(
        &self,
        at: u64,
        live: Option<&Frame>,
        memory: &mut impl StackMemory,
    ) -> Option<Step> {
        let mut read = |offset: u64| memory.word(at.wrapping_add(offset));
        let (ip, cs, sp) = (read(saved::IP)?, read(saved::CS)?, read(saved::SP)?);
        let (bp, others) = match live {
            Some(frame) => (frame.bp, frame.others),
            None => (
                read(saved::BP)?,
                Some(Others {
                    ax: read(saved::AX)?,
                    dx: read(saved::DX)?,
                    di: read(saved::DI)?,
                    r10: read(saved::R10)?,
                    r13: read(saved::R13)?,
                }),
            ),
        };
        if cs & 3 == 3 {
            let mut user = FrameRegisters::new(ip, sp, Some(bp));
            let mut is_exact = true;
            if live.is_none() {
                for (register, offset) in saved::GENERAL {
                    user.set(register, read(offset));
                }
                // SYSCALL saves the next instruction's address in RCX and the flags in R11 (SDM volume 2, SYSCALL). Both
                // may still be there when an interrupt comes, but then there is no number of a system call.
                let is_call = read(saved::ORIG_AX)?.cast_signed() >= 0
                    && read(saved::CX)? == ip
                    && read(saved::R11)? == read(saved::FLAGS)?;
                is_exact = !is_call;
            }
            return Some(Step::User(UserRegisters {
                at: user,
                is_exact,
                is_64_bit: cs == USER_CS,
            }));
        }
        self.is_code(ip).then_some(Step::Kernel(Frame {
            ip,
            sp,
            bp,
            others,
            is_exact: true,
        }))
    }

    /// The caller that a function returns to at `ip`, which is right below `sp`.
    fn called(&self, ip: u64, sp: u64, bp: u64, memory: &mut impl StackMemory) -> Option<Step> {
        let ip = match self.hooks {
            Some((hooks, task)) => {
                hooks.true_address((ip, sp.wrapping_sub(8)), self.slide, task, memory)?
            }
            None => ip,
        };
        self.is_code(ip.wrapping_sub(1))
            .then_some(Step::Kernel(Frame {
                ip,
                sp,
                bp,
                others: None,
                is_exact: false,
            }))
    }

    /// The caller according to the frame pointer. Kernels with frame pointers mark interrupted registers in its lowest
    /// bit (`ENCODE_FRAME_POINTER`, `arch/x86/include/asm/frame.h`).
    fn by_frame_pointer(&self, frame: &Frame, memory: &mut impl StackMemory) -> Option<Step> {
        if frame.bp == 0 {
            let user = self.system_call(frame, memory);
            return Some(user.unwrap_or(Step::End(StackEnd::Complete)));
        }
        if frame.bp & 1 == 1 {
            return self.interrupted(frame.bp & !1, None, memory);
        }
        let is_above = |sp: u64| {
            let distance = frame.bp.checked_sub(sp);
            distance.is_some_and(|distance| distance < MAX_FRAME)
        };
        // An interrupt stack begins with the stack pointer of the interrupted stack (`call_on_stack`,
        // `arch/x86/include/asm/irq_stack.h`).
        if !is_above(frame.sp) && !is_above(memory.word(frame.sp)?) {
            return None;
        }
        let back = memory.word(frame.bp.wrapping_add(8))?;
        let caller = memory.word(frame.bp)?;
        self.called(back, frame.bp.wrapping_add(16), caller, memory)
    }

    /// The user registers after a system call's outermost frame. Entry code clears the frame pointer, and first pushes
    /// the registers.
    fn system_call(&self, frame: &Frame, memory: &mut impl StackMemory) -> Option<Step> {
        let end = frame.sp.wrapping_add(saved::LENGTH);
        // With FRED the processor's own frame is longer (`TOP_OF_KERNEL_STACK_PADDING`).
        let is_first = [0, 16]
            .into_iter()
            .any(|padding| end.wrapping_add(padding).is_multiple_of(STACK_ALIGNMENT));
        if !is_first {
            return None;
        }
        self.entered_from(frame.sp, memory).map(Step::User)
    }

    /// The user registers that the kernel's entry has saved at `at`.
    pub fn entered_from(&self, at: u64, memory: &mut impl StackMemory) -> Option<UserRegisters> {
        match self.interrupted(at, None, memory)? {
            Step::User(user) if user.at.ip >> 63 == 0 => Some(user),
            _ => None,
        }
    }

    /// True for an address in the kernel's image or in the range of modules.
    fn is_code(&self, address: u64) -> bool {
        self.image.contains(&address.wrapping_sub(self.slide)) || MODULES.contains(&address)
    }
}

impl Frame {
    /// An address inside this frame's current instruction.
    fn inside(&self) -> u64 {
        self.ip.wrapping_sub(u64::from(!self.is_exact))
    }

    /// The caller's stack pointer, or the address of saved registers.
    fn caller_sp(
        &self,
        entry: OrcEntry,
        offset_first: bool,
        memory: &mut impl StackMemory,
    ) -> Option<u64> {
        let offset = i64::from(entry.sp_offset);
        let base = match entry.sp {
            Base::Sp => self.sp,
            Base::Bp => self.bp,
            Base::Ax => self.others?.ax,
            Base::Dx => self.others?.dx,
            Base::Di => self.others?.di,
            Base::R10 => self.others?.r10,
            Base::R13 => self.others?.r13,
            Base::BpIndirect => return memory.word(self.bp.wrapping_add_signed(offset)),
            Base::SpIndirect if offset_first => {
                return memory.word(self.sp.wrapping_add_signed(offset));
            }
            Base::SpIndirect => memory.word(self.sp)?,
            Base::Undefined | Base::CallerSp => return None,
        };
        Some(base.wrapping_add_signed(offset))
    }
}
