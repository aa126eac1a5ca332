//! How to find a frame's caller in a kernel with neither ORC nor frame pointers: by its code.
//!
//! From an address on, the code is followed to where its function returns. What is popped on the way tells where the
//! return address is, and the caller's RBP. Where that doesn't lead to a return, the code is followed from the function's
//! begin to the address, by what is pushed. All paths that lead to the same instruction have to agree, or the address
//! has no rule: a stack ends there rather than at a wrong caller.
//!
//! A walk visits a bounded number of instructions and allocates nothing. Its result is kept, so that the next stack
//! through the same address needs no walk.
//!
//! Modules have rules of their own, whose walks may end in the kernel's functions.

mod entries;
mod roles;
mod state;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};

use super::orc::{Base, Kind, OrcEntry};
use crate::Symbols;
use crate::image::KernelImage;
use entries::by_stack;
use roles::{Role, roles};
use walk::{Goal, Walk};

/// Maximum number of bytes of code. Distributions' kernels have some 20 MB.
const MAX_CODE: usize = 64 << 20;
/// The number of rules that are kept of a kernel; a power of two.
const KEPT: usize = 1 << 14;
/// Bits of a kept rule. The offset above it has the others.
const RULE_BITS: u32 = 31;
/// The alignment of functions, in bytes.
const FUNCTION_ALIGNMENT: u64 = 16;
/// The number of bytes of a module's code of which one rule is kept.
const BYTES_A_RULE: usize = 64;

/// The rules of one kernel.
#[derive(Debug)]
pub struct CodeRules {
    code: Vec<u8>,
    /// The link-time address of the code.
    start: u64,
    /// The offsets of functions in it, sorted, and their roles.
    functions: Vec<(u32, Role)>,
    /// The rules that were found, by a part of the offset. A word is the offset plus 1 in its upper half, and the rule.
    kept: Box<[AtomicU64]>,
    /// For a module, the kernel, and how far above its link-time addresses that runs.
    kernel: Option<(Arc<CodeRules>, u64)>,
}

impl CodeRules {
    /// The rules for the code of `image`, whose functions are those of `symbols`. `None` without symbols, and for a
    /// kernel with frame pointers.
    pub fn find(image: &KernelImage<'_>, symbols: &Symbols) -> Option<Self> {
        let (start, code) = image.between(symbols.addresses_of(["_stext", "_etext"]))?;
        if code.len() > MAX_CODE {
            return None;
        }
        let rules = Self {
            code: code.to_vec(),
            start,
            functions: roles(
                symbols
                    .functions()
                    .map(|(address, _, name)| (address, name)),
                start..start.saturating_add(code.len() as u64),
            ),
            kept: (0..KEPT).map(|_| AtomicU64::new(0)).collect(),
            kernel: None,
        };
        (!rules.has_frame_pointers()).then_some(rules)
    }

    /// The rules for a module's `code` at run-time address `start`, with the addresses and names of its functions, in a
    /// kernel with the rules `kernel` that runs `slide` bytes above its link-time addresses.
    pub fn of_module<'s>(
        code: Vec<u8>,
        start: u64,
        functions: impl Iterator<Item = (u64, &'s str)>,
        kernel: &Arc<Self>,
        slide: u64,
    ) -> Self {
        let kept = (code.len() / BYTES_A_RULE).next_power_of_two().min(KEPT);
        Self {
            start,
            functions: roles(functions, start..start.saturating_add(code.len() as u64)),
            kept: (0..kept).map(|_| AtomicU64::new(0)).collect(),
            kernel: Some((Arc::clone(kernel), slide)),
            code,
        }
    }

    /// The approximate memory use, in bytes.
    pub fn footprint(&self) -> usize {
        self.code.len() + self.functions.len() * size_of::<(u32, Role)>() + self.kept.len() * 8
    }

    /// The rule for address `address`, link-time for a kernel and run-time for a module: an instruction that was about to be executed if it `is_exact`, otherwise
    /// what follows a call.
    pub fn entry(&self, address: u64, is_exact: bool) -> Option<OrcEntry> {
        let offset = u32::try_from(address.checked_sub(self.start)?).ok()?;
        let key = (u64::from(offset) << 1 | u64::from(is_exact)) + 1;
        let place = usize::try_from(key).ok()? & (self.kept.len() - 1);
        let word = self.kept.get(place)?;
        let known = word.load(Ordering::Relaxed);
        if known >> RULE_BITS == key {
            return unpack(known);
        }
        let found = self.walk(offset, is_exact);
        word.store(key << RULE_BITS | pack(found), Ordering::Relaxed);
        found
    }

    /// Whether most functions begin with `push %rbp; mov %rsp, %rbp`.
    fn has_frame_pointers(&self) -> bool {
        let step = (self.functions.len() / 1024).max(1);
        let sampled = self.functions.iter().step_by(step);
        let plain = sampled.filter(|(_, role)| *role == Role::Plain);
        let (mut all, mut framed) = (0, 0);
        for (offset, _) in plain {
            all += 1;
            let mut at = *offset;
            let mut pushes = false;
            for _ in 0..6 {
                let Some(instruction) = self.instruction(at) else {
                    break;
                };
                let is_framed = pushes && instruction.mnemonic() == Mnemonic::Mov;
                if is_framed
                    && instruction.op0_register() == Register::RBP
                    && instruction.op1_register() == Register::RSP
                {
                    framed += 1;
                    break;
                }
                pushes |= instruction.mnemonic() == Mnemonic::Push
                    && instruction.op0_register() == Register::RBP;
                at = at.wrapping_add(u32::try_from(instruction.len()).unwrap_or(1));
            }
        }
        framed * 2 > all
    }

    fn instruction(&self, offset: u32) -> Option<Instruction> {
        let start = usize::try_from(offset).ok()?;
        let bytes = self.code.get(start..)?;
        let address = self.start.wrapping_add(u64::from(offset));
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// The function that contains `offset`: its own offset, and its role.
    fn function(&self, offset: u32) -> Option<(u32, Role)> {
        let after = (self.functions).partition_point(|(begin, _)| *begin <= offset);
        self.functions.get(after.checked_sub(1)?).copied()
    }

    /// Whether the call before `offset` is one of a function that doesn't return.
    fn follows_no_return(&self, offset: u32) -> bool {
        /// Bytes of CALL rel32.
        const CALL: u32 = 5;
        let call = offset.checked_sub(CALL).and_then(|at| self.instruction(at));
        let call = call.filter(|call| call.code() == Code::Call_rel32_64);
        call.is_some_and(|call| self.is_no_return(call.near_branch_target()))
    }

    /// Whether the function at address `target` doesn't return.
    fn is_no_return(&self, target: u64) -> bool {
        match (self.offset_of(target), &self.kernel) {
            (Some(offset), _) => {
                let called = self.function(offset);
                called.is_some_and(|(_, role)| role == Role::NoReturn)
            }
            (None, Some((kernel, slide))) => kernel.is_no_return(target.wrapping_sub(*slide)),
            (None, None) => false,
        }
    }

    /// Whether a jump of a module to address `target` leaves its function: to return, or to a function of the kernel.
    fn leaves(&self, target: u64) -> bool {
        let Some((kernel, slide)) = &self.kernel else {
            return false;
        };
        let target = kernel.offset_of(target.wrapping_sub(*slide));
        let function = target.and_then(|target| Some((target, kernel.function(target)?)));
        function.is_some_and(|(target, (begin, role))| match role {
            Role::ReturnThunk => true,
            Role::Plain | Role::NoReturn => begin == target,
            Role::Part
            | Role::JumpThunk
            | Role::Entry
            | Role::Interrupt
            | Role::InterruptWithCode
            | Role::SavesRegisters
            | Role::RestoresRegisters
            | Role::Returns
            | Role::SystemCall
            | Role::Outermost => false,
        })
    }

    /// Whether these are the rules of a kernel, and not of a module.
    fn is_kernel(&self) -> bool {
        self.kernel.is_none()
    }

    fn offset_of(&self, address: u64) -> Option<u32> {
        let offset = u32::try_from(address.checked_sub(self.start)?).ok()?;
        (usize::try_from(offset).ok()? < self.code.len()).then_some(offset)
    }

    fn walk(&self, offset: u32, is_exact: bool) -> Option<OrcEntry> {
        let inside = offset.checked_sub(u32::from(!is_exact))?;
        let (begin, role) = self.function(inside)?;
        let fixed = |kind| by_stack(kind, 0);
        match role {
            Role::Outermost => return Some(fixed(Kind::End)),
            Role::Entry | Role::Interrupt | Role::InterruptWithCode | Role::SystemCall
                if !is_exact =>
            {
                return Some(fixed(Kind::Registers));
            }
            Role::SystemCall => return Some(fixed(Kind::End)),
            Role::Interrupt => return self.at_interrupt(begin, offset, false),
            Role::InterruptWithCode => return self.at_interrupt(begin, offset, true),
            Role::SavesRegisters if is_exact => return self.at_saving(begin, offset),
            Role::RestoresRegisters if is_exact => return self.at_restoring(begin, offset),
            Role::Returns if is_exact => return Some(fixed(Kind::ProcessorFrame)),
            // The running kernel has patched its code, which is looked at in the guest.
            Role::ReturnThunk | Role::JumpThunk if is_exact => {
                return Some(fixed(Kind::Undefined));
            }
            Role::Entry
            | Role::SavesRegisters
            | Role::RestoresRegisters
            | Role::Returns
            | Role::ReturnThunk
            | Role::JumpThunk => return None,
            Role::Plain | Role::Part | Role::NoReturn => {}
        }
        // What follows a call that doesn't return belongs to other code.
        let continues = self.function(offset) == Some((begin, role))
            && (is_exact || !self.follows_no_return(offset));
        let by_return = continues.then(|| Walk::new(self).until_return(offset));
        by_return.flatten().or_else(|| {
            let is_called = role != Role::Part && self.is_aligned(begin);
            let goal = Goal { offset, is_exact };
            is_called.then(|| Walk::new(self).until_goal(begin, goal))?
        })
    }

    /// Whether `offset` is where a function may begin, other than a label in assembly code: compilers and `SYM_FUNC_START`
    /// (`arch/x86/include/asm/linkage.h`) align functions.
    fn is_aligned(&self, offset: u32) -> bool {
        self.start.wrapping_add(u64::from(offset)) % FUNCTION_ALIGNMENT == 0
    }
}

/// A rule in the lower [`RULE_BITS`] of a word: from the lowest on whether there is one, 3 bits of its kind, 2 of its
/// base, 12 of its offset in words, whether the caller's RBP is on the stack, and 12 of how many words below the caller's
/// stack.
fn pack(entry: Option<OrcEntry>) -> u64 {
    let Some(entry) = entry else {
        return 0;
    };
    let kind = match entry.kind {
        Kind::Registers => 1,
        Kind::End => 2,
        Kind::ProcessorFrame => 3,
        Kind::Undefined => 4,
        Kind::Call => 0,
    };
    let base = match entry.sp {
        Base::Bp => 1,
        Base::SpIndirect => 2,
        _ => 0,
    };
    let words = |offset: i16| u64::from(offset.unsigned_abs() / 8);
    let is_stacked = u64::from(entry.bp == Base::CallerSp);
    1 | kind << 1
        | base << 4
        | words(entry.sp_offset) << 6
        | is_stacked << 18
        | words(entry.bp_offset) << 19
}

fn unpack(word: u64) -> Option<OrcEntry> {
    let words = |shift: u32| i16::try_from((word >> shift & 0xfff) * 8).unwrap_or(0);
    let is_stacked = word >> 18 & 1 == 1;
    (word & 1 == 1).then(|| OrcEntry {
        kind: match word >> 1 & 7 {
            1 => Kind::Registers,
            2 => Kind::End,
            3 => Kind::ProcessorFrame,
            4 => Kind::Undefined,
            _ => Kind::Call,
        },
        sp: match word >> 4 & 3 {
            1 => Base::Bp,
            2 => Base::SpIndirect,
            _ => Base::Sp,
        },
        sp_offset: words(6),
        bp: if is_stacked {
            Base::CallerSp
        } else {
            Base::Undefined
        },
        bp_offset: -words(19),
    })
}
