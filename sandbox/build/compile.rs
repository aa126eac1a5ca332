//! Compiles a table of system calls into a filter, a program of classic BPF (kernel: Documentation/networking/filter.rst).
//!
//! The filter finds a call by binary search, not by comparing one after the other: when the kernel installs a filter, it runs the filter for each
//! system call number, and that is most of what a filter costs at a start.

use std::collections::BTreeMap;

use crate::calls::{AllowedCall, Condition, Refusal, RefusedCall};

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
/// `__X32_SYSCALL_BIT`: from here on the same calls have other numbers.
const X32: u32 = 0x4000_0000;

/// What a filter does with a call.
#[derive(Clone, PartialEq, Eq)]
enum Decision {
    /// Answers this, a value of SECCOMP_RET_*.
    Always(u32),
    Ask(Question),
}

/// Answers `then` if one of the conditions (argument, mask, value) holds.
#[derive(Clone, PartialEq, Eq)]
struct Question {
    if_any: Vec<(u8, u32, u32)>,
    then: u32,
    otherwise: u32,
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn answer(action: u32) -> Instruction {
    instruction(RETURN, 0, 0, action)
}

/// The filter that raises SIGSYS at calls that `allowed` doesn't contain. A call with several entries is allowed if one of them
/// allows it.
///
/// # Panics
/// A number of the table is too large for a filter. That ends the build.
pub(crate) fn allow_only<'a>(allowed: impl Iterator<Item = &'a AllowedCall>) -> Vec<Instruction> {
    let mut calls: BTreeMap<u32, Decision> = BTreeMap::new();
    for it in allowed {
        let no_condition = || {
            Decision::Ask(Question {
                if_any: Vec::new(),
                then: libc::SECCOMP_RET_ALLOW,
                otherwise: libc::SECCOMP_RET_TRAP,
            })
        };
        match calls.entry(number(it.call)).or_insert_with(no_condition) {
            Decision::Ask(question) if !it.if_any.is_empty() => {
                question.if_any.extend(it.if_any.iter().map(halves));
            }
            decision => *decision = Decision::Always(libc::SECCOMP_RET_ALLOW),
        }
    }
    let trap = libc::SECCOMP_RET_TRAP;
    program(&ranges(calls, trap, trap), trap)
}

/// The filter with which the calls that `refused` contains fail. Those of the ABI x32 fail with EPERM, those of another architecture end the process.
///
/// # Panics
/// A number of the table is too large for a filter. That ends the build.
pub(crate) fn refuse_only<'a>(refused: impl Iterator<Item = &'a RefusedCall>) -> Vec<Instruction> {
    let decision = |it: &RefusedCall| {
        let (allowed, refused) = (libc::SECCOMP_RET_ALLOW, errno(it.error));
        let (if_any, then, otherwise) = match it.when {
            Refusal::Always => return (number(it.call), Decision::Always(refused)),
            Refusal::If(conditions) => (conditions, refused, allowed),
            Refusal::Unless(conditions) => (conditions, allowed, refused),
        };
        let question = Question {
            if_any: if_any.iter().map(halves).collect(),
            then,
            otherwise,
        };
        (number(it.call), Decision::Ask(question))
    };
    let refused = refused.map(decision).collect();
    let ranges = ranges(refused, libc::SECCOMP_RET_ALLOW, errno(libc::EPERM));
    program(&ranges, libc::SECCOMP_RET_KILL_PROCESS)
}

fn number(call: i64) -> u32 {
    u32::try_from(call).expect("calls have positive numbers")
}

fn errno(error: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | error.unsigned_abs()
}

/// The program that answers `foreign` to calls of other architectures.
fn program(ranges: &[(u32, Decision)], foreign: u32) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(IF_EQUAL, 1, 0, X86_64),
        answer(foreign),
        instruction(LOAD, 0, 0, NUMBER),
    ];
    program.extend(search(ranges));
    program
}

/// The ranges of call numbers: the first number of each, and what the filter does with it. The first range starts at 0. Calls that aren't in the table
/// get the answer `others`, those of the ABI x32 `x32`.
fn ranges(calls: BTreeMap<u32, Decision>, others: u32, x32: u32) -> Vec<(u32, Decision)> {
    let mut ranges = vec![(0, Decision::Always(others))];
    // Each call is a range; the numbers between a call and the next one are another.
    let calls = calls
        .into_iter()
        .flat_map(|(call, decision)| [(call, decision), (call + 1, Decision::Always(others))]);
    for (start, decision) in calls.chain([(X32, Decision::Always(x32))]) {
        if ranges.last().is_some_and(|last| last.0 == start) {
            ranges.pop();
        }
        if ranges.last().is_none_or(|last| last.1 != decision) {
            ranges.push((start, decision));
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
fn search(ranges: &[(u32, Decision)]) -> Vec<Instruction> {
    if let [(_, decision)] = ranges {
        return leaf(decision);
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

fn leaf(decision: &Decision) -> Vec<Instruction> {
    let question = match decision {
        Decision::Always(action) => return vec![answer(*action)],
        Decision::Ask(question) => question,
    };
    let mut values: BTreeMap<(u8, u32), Vec<u32>> = BTreeMap::new();
    for (argument, mask, value) in &question.if_any {
        values.entry((*argument, *mask)).or_default().push(*value);
    }
    let mut program = Vec::new();
    for ((argument, mask), values) in values {
        let place = ARGUMENTS + ARGUMENT_BYTES * u32::from(argument);
        program.push(instruction(LOAD, 0, 0, place));
        program.push(instruction(AND, 0, 0, mask));
        // Jumps to the answer `then` after the last comparison.
        for (value, left) in values.iter().zip((0..values.len()).rev()) {
            let left = u8::try_from(left + 1).expect("conditions are few");
            program.push(instruction(IF_EQUAL, left, 0, *value));
        }
        program.push(instruction(JUMP, 0, 0, 1));
        program.push(answer(question.then));
    }
    program.push(answer(question.otherwise));
    program
}
