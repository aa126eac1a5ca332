//! The rules of assembly code at the ends of an exception or interrupt (`arch/x86/entry/entry_64.S`), for an instruction that was about to be executed.
//!
//! It runs straight on, and how far what the processor has saved is from the stack pointer follows from what it pushes and pops.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::super::orc::{Base, Kind, OrcEntry};
use super::CodeRules;

/// Bytes of a register, of a return address, and of an error code.
const WORD: i16 = 8;
/// The general registers of `struct pt_regs`.
const REGISTERS: i16 = 15;
/// How many of them are popped, with RBP the last.
const POPPED_WITH_RBP: i16 = 5;
/// Maximum number of instructions that are looked at.
const MOST: usize = 64;

/// A rule by the stack pointer.
pub fn by_stack(kind: Kind, sp_offset: i16) -> OrcEntry {
    OrcEntry {
        kind,
        sp: Base::Sp,
        sp_offset,
        bp: Base::Undefined,
        bp_offset: 0,
    }
}

impl CodeRules {
    /// In the code of an interrupt, until it calls what saves the registers: it pushes its number, if the processor or a stub hasn't pushed a code.
    pub(super) fn at_interrupt(&self, begin: u32, offset: u32, has_code: bool) -> Option<OrcEntry> {
        let mut pushed = if has_code { WORD } else { 0 };
        self.straight_on(begin, offset, |instruction| {
            match instruction.mnemonic() {
                Mnemonic::Endbr64 | Mnemonic::Clac | Mnemonic::Nop | Mnemonic::Cld => {}
                Mnemonic::Push => pushed += WORD,
                _ => return false,
            }
            true
        })?;
        Some(by_stack(Kind::ProcessorFrame, pushed))
    }

    /// In what such code calls to save the registers, with its return address on top in the end: then the caller has all of them.
    pub(super) fn at_saving(&self, begin: u32, offset: u32) -> Option<OrcEntry> {
        let mut pushed = 0;
        self.straight_on(begin, offset, |instruction| {
            match instruction.mnemonic() {
                Mnemonic::Push => pushed += 1,
                Mnemonic::Pop | Mnemonic::Ret | Mnemonic::Jmp => return false,
                _ => return !writes_rsp(instruction),
            }
            pushed <= REGISTERS + 1
        })?;
        Some(match pushed {
            0..=REGISTERS => by_stack(Kind::ProcessorFrame, (2 + pushed) * WORD),
            _ => by_stack(Kind::Call, WORD),
        })
    }

    /// In what pops all registers, on the way back to the interrupted code.
    pub(super) fn at_restoring(&self, begin: u32, offset: u32) -> Option<OrcEntry> {
        let (mut popped, mut skipped) = (0, 0);
        self.straight_on(begin, offset, |instruction| {
            match instruction.mnemonic() {
                Mnemonic::Pop => popped += 1,
                // The error code.
                Mnemonic::Add if writes_rsp(instruction) => {
                    let is_code = instruction.op1_kind() == OpKind::Immediate8to64
                        && instruction.immediate(1) == 8;
                    skipped += 1;
                    return is_code;
                }
                Mnemonic::Test | Mnemonic::Je | Mnemonic::Jne | Mnemonic::Nop => {}
                _ => return false,
            }
            popped <= REGISTERS && skipped <= 1
        })?;
        match popped {
            0 => Some(by_stack(Kind::Registers, 0)),
            // RBP isn't the interrupted code's yet, and its place is below the stack.
            1..POPPED_WITH_RBP => None,
            _ => {
                let left = REGISTERS - popped + 1 - skipped;
                Some(by_stack(Kind::ProcessorFrame, left * WORD))
            }
        }
    }

    /// Has `step` look at each instruction from `begin` to `offset`. `None` if it refuses one, or there is none at `offset`.
    fn straight_on(
        &self,
        begin: u32,
        offset: u32,
        mut step: impl FnMut(&Instruction) -> bool,
    ) -> Option<()> {
        let mut at = begin;
        for _ in 0..MOST {
            if at == offset {
                return Some(());
            }
            let instruction = self.instruction(at)?;
            if !step(&instruction) {
                return None;
            }
            at = at.checked_add(u32::try_from(instruction.len()).ok()?)?;
        }
        None
    }
}

fn writes_rsp(instruction: &Instruction) -> bool {
    instruction.op0_register() == Register::RSP
}
