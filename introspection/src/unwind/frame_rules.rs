//! Checks the rules of unwind tables that locate a frame and its saved frame pointer. Sound rules give no address near
//! 0, and no distance that overflows.
//!
//! Compilers and linkers make only sound rules, but tables come from the guest, and framehop 0.16.0 adds and subtracts
//! some of these numbers without a check (`src/x86_64/dwarf.rs`: `cfa - 8`, `offset + bp_cfa_offset`).

use std::ops::RangeInclusive;

use gimli::{CallFrameInstruction, EhFrame, Encoding, Expression, Operation, Register, X86_64};

use super::unwind_table::Bytes;

/// Accepted distances of a frame's address from a register, and of saved registers from that address, in bytes.
const DISTANCES: RangeInclusive<i64> = -2048..=1 << 31;
const SAVED: RangeInclusive<i64> = -(1 << 31)..=1 << 31;
/// Maximum shift of the stack pointer's addend 1 in an entry for the procedure linkage table.
const MAX_SHIFT: u64 = 12;

/// Whether the rule of `instruction` is sound with stack and frame pointers of at least 4080. `factor` is the factor of
/// the entry's offsets.
pub fn are_sound(
    instruction: &CallFrameInstruction<usize>,
    factor: i64,
    encoding: Encoding,
    section: &EhFrame<Bytes<'_>>,
) -> bool {
    let unfactored = |offset: i64| offset.checked_mul(factor);
    let is_near = |distance: Option<i64>, distances: &RangeInclusive<i64>| {
        distance.is_some_and(|distance| distances.contains(&distance))
    };
    let is_frame_pointer = |register: Register| register == X86_64::RBP;
    match *instruction {
        CallFrameInstruction::DefCfa { offset, .. }
        | CallFrameInstruction::DefCfaOffset { offset } => {
            is_near(Some(offset.cast_signed()), &DISTANCES)
        }
        CallFrameInstruction::DefCfaSf {
            factored_offset, ..
        }
        | CallFrameInstruction::DefCfaOffsetSf { factored_offset } => {
            is_near(unfactored(factored_offset), &DISTANCES)
        }
        CallFrameInstruction::Offset {
            register,
            factored_offset,
        } if is_frame_pointer(register) => {
            is_near(unfactored(factored_offset.cast_signed()), &SAVED)
        }
        CallFrameInstruction::OffsetExtendedSf {
            register,
            factored_offset,
        } if is_frame_pointer(register) => is_near(unfactored(factored_offset), &SAVED),
        CallFrameInstruction::DefCfaExpression { expression } => expression
            .get(section)
            .is_ok_and(|expression| is_sound_expression(expression, encoding)),
        _ => true,
    }
}

/// Whether `expression`, which has no jumps, is of one of two kinds: it reads memory, so that framehop doesn't evaluate
/// it, or it is that of the procedure linkage table, which adds a power of two to the stack pointer depending on the
/// program counter (`elf_x86_64_eh_frame_plt`, `bfd/elf64-x86-64.c`).
fn is_sound_expression(expression: Expression<Bytes<'_>>, encoding: Encoding) -> bool {
    let mut operations = expression.operations(encoding);
    let mut first = [const { None }; 9];
    let mut count = 0;
    while let Ok(Some(operation)) = operations.next() {
        if matches!(operation, Operation::Deref { .. }) {
            return true;
        }
        if let Some(slot) = first.get_mut(count) {
            *slot = Some(operation);
        }
        count += 1;
    }
    let [
        Some(Operation::RegisterOffset {
            register: X86_64::RSP,
            offset,
            ..
        }),
        Some(Operation::RegisterOffset {
            register: X86_64::RA,
            ..
        }),
        Some(Operation::UnsignedConstant { .. }),
        Some(Operation::And),
        Some(Operation::UnsignedConstant { .. }),
        Some(Operation::Ge),
        Some(Operation::UnsignedConstant { value: shift }),
        Some(Operation::Shl),
        Some(Operation::Plus),
    ] = first
    else {
        return false;
    };
    count == first.len() && DISTANCES.contains(&offset) && shift <= MAX_SHIFT
}
