//! Compiles a table of system calls into a filter, a program of classic BPF (kernel: Documentation/networking/filter.rst).
//!
//! The filter finds a call by binary search, not by comparing one after the other: when the kernel installs a filter, it runs the filter for each
//! system call number, and that is most of what a filter costs at a start.

use std::collections::BTreeMap;

use crate::allowed::{AllowedCall, Condition};

/// An instruction, with the fields of `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// BPF_LD | BPF_W | BPF_ABS, of `struct seccomp_data`.
pub(crate) const LOAD: u16 = 0x20;
/// BPF_ALU | BPF_AND | BPF_K.
pub(crate) const AND: u16 = 0x54;
/// BPF_JMP | BPF_JA.
pub(crate) const JUMP: u16 = 0x05;
/// BPF_JMP | BPF_JEQ | BPF_K.
pub(crate) const IF_EQUAL: u16 = 0x15;
/// BPF_JMP | BPF_JGE | BPF_K.
pub(crate) const IF_AT_LEAST: u16 = 0x35;
/// BPF_RET | BPF_K.
pub(crate) const RETURN: u16 = 0x06;

/// Offsets into `struct seccomp_data`: the call's number, the architecture, the low half of the first argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;
/// AUDIT_ARCH_X86_64.
const X86_64: u32 = 0xc000_003e;

/// What a filter does with a range of calls.
#[derive(Clone, PartialEq, Eq)]
enum RangeAction {
    Allow,
    Trap,
    /// Allows the call if one of these conditions holds: argument, mask, value.
    Ask(Vec<(u8, u32, u32)>),
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn allow() -> Instruction {
    instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW)
}

fn trap() -> Instruction {
    instruction(RETURN, 0, 0, libc::SECCOMP_RET_TRAP)
}

/// The filter that raises SIGSYS at calls that `allowed` doesn't contain. A call with several entries is allowed if one of them
/// allows it.
///
/// # Panics
/// A number of the table is too large for a filter. That ends the build.
pub(crate) fn compile<'a>(allowed: impl Iterator<Item = &'a AllowedCall>) -> Vec<Instruction> {
    let ranges = ranges(allowed);
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(IF_EQUAL, 1, 0, X86_64),
        trap(),
        instruction(LOAD, 0, 0, NUMBER),
    ];
    program.extend(search(&ranges));
    program
}

/// The ranges of call numbers: the first number of each, and what the filter does with it. The first range starts at 0.
fn ranges<'a>(allowed: impl Iterator<Item = &'a AllowedCall>) -> Vec<(u32, RangeAction)> {
    let mut calls: BTreeMap<u32, RangeAction> = BTreeMap::new();
    for it in allowed {
        let call = u32::try_from(it.call).expect("calls have positive numbers");
        let does = calls.entry(call).or_insert(RangeAction::Ask(Vec::new()));
        match does {
            RangeAction::Ask(conditions) if !it.if_any.is_empty() => {
                conditions.extend(it.if_any.iter().map(halves));
            }
            _ => *does = RangeAction::Allow,
        }
    }
    let mut ranges = vec![(0, RangeAction::Trap)];
    for (call, does) in calls {
        // Each call is a range; the numbers between a call and the next one are forbidden.
        for (start, does) in [(call, does), (call + 1, RangeAction::Trap)] {
            if ranges.last().is_some_and(|last| last.0 == start) {
                ranges.pop();
            }
            if ranges.last().is_none_or(|last| last.1 != does) {
                ranges.push((start, does));
            }
        }
    }
    ranges
}

/// A condition for the low half of an argument: argument, mask, value.
fn halves(condition: &Condition) -> (u8, u32, u32) {
    let low = |number| u32::try_from(number).expect("conditions have 32 bits");
    (
        condition.argument,
        low(condition.mask),
        low(condition.value),
    )
}

/// The instructions that find the range of the call number in the accumulator.
fn search(ranges: &[(u32, RangeAction)]) -> Vec<Instruction> {
    if let [(_, does)] = ranges {
        return leaf(does);
    }
    let (below, from) = ranges.split_at(ranges.len() / 2);
    let start = from[0].0;
    let below = search(below);
    let mut program = match u8::try_from(below.len()) {
        Ok(skipped) => vec![instruction(IF_AT_LEAST, skipped, 0, start)],
        Err(_) => {
            let skipped = u32::try_from(below.len()).expect("filters are short");
            vec![
                instruction(IF_AT_LEAST, 0, 1, start),
                instruction(JUMP, 0, 0, skipped),
            ]
        }
    };
    program.extend(below);
    program.extend(search(from));
    program
}

fn leaf(does: &RangeAction) -> Vec<Instruction> {
    let conditions = match does {
        RangeAction::Allow => return vec![allow()],
        RangeAction::Trap => return vec![trap()],
        RangeAction::Ask(conditions) => conditions,
    };
    let mut values: BTreeMap<(u8, u32), Vec<u32>> = BTreeMap::new();
    for (argument, mask, value) in conditions {
        values.entry((*argument, *mask)).or_default().push(*value);
    }
    let mut program = Vec::new();
    for ((argument, mask), values) in values {
        let place = ARGUMENTS + ARGUMENT_BYTES * u32::from(argument);
        program.push(instruction(LOAD, 0, 0, place));
        program.push(instruction(AND, 0, 0, mask));
        // Jumps to the `allow` after the last comparison.
        for (value, left) in values.iter().zip((0..values.len()).rev()) {
            let left = u8::try_from(left + 1).expect("conditions are few");
            program.push(instruction(IF_EQUAL, left, 0, *value));
        }
        program.push(instruction(JUMP, 0, 0, 1));
        program.push(allow());
    }
    program.push(trap());
    program
}
