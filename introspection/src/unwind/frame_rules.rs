//! Which rules for where a frame lies, and where it keeps the frame pointer, may be evaluated: such as lead nowhere near
//! address 0, and to no distance that doesn't fit into a number.
//!
//! Compilers and linkers make no others. framehop 0.16.0 adds and subtracts some of these numbers without a check
//! (`src/x86_64/dwarf.rs`: `cfa - 8`, `offset + bp_cfa_offset`), and tables are a guest's.

use std::ops::RangeInclusive;

use gimli::{CallFrameInstruction, EhFrame, Encoding, Expression, Operation, Register, X86_64};

use super::unwind_table::Bytes;

/// How far from a register a frame's address may lie, and from that address what was saved, in bytes.
const DISTANCES: RangeInclusive<i64> = -2048..=1 << 31;
const SAVED: RangeInclusive<i64> = -(1 << 31)..=1 << 31;
/// Most bits by which an entry of the procedure linkage table moves the stack pointer's 1.
const MAX_SHIFT: u64 = 12;

/// Whether `instruction`, of entries whose offsets are factored by `factor`, makes a rule that may be evaluated, with stack
/// and frame pointers of 4080 at least.
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

/// Whether `expression`, which has no jumps, is of one of two kinds: one that reads memory, which framehop doesn't
/// evaluate; or that of the procedure linkage table, which adds a power of two to the stack pointer or doesn't, depending
/// on the program counter (`elf_x86_64_eh_frame_plt`, `bfd/elf64-x86-64.c`).
fn is_sound_expression(expression: Expression<Bytes<'_>>, encoding: Encoding) -> bool {
    let mut operations = expression.operations(encoding);
    let mut first = [const { None }; 9];
    let mut count = 0;
    while let Ok(Some(operation)) = operations.next() {
        if matches!(operation, Operation::Deref { .. }) {
            return true;
        }
        if let Some(place) = first.get_mut(count) {
            *place = Some(operation);
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
