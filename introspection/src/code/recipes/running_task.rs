//! The running task, its id and its name: `dump_stack_print_info` (`lib/dump_stack.c`) prints them. Its text finds the
//! code, without a symbol, and says which argument is which.

use std::ops::Range;

use memchr::memmem;

use super::super::flow::{Call, Flow, Node, Value};
use super::super::{Code, Findings};

/// A part of the text that it prints.
const TEXT: &[u8] = b"PID: %d Comm: %.20s";
/// Maximum length of the whole text, in bytes.
const MAX_TEXT: usize = 128;
/// Maximum number of places that are looked at: those of the text, and of instructions that have its address.
const MAX_PLACES: usize = 16;
/// Maximum distance from the start of a function without a symbol to the instruction, in bytes.
const MAX_BEFORE: u64 = 256;

/// Finds the task.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    for (address, format) in texts(code).into_iter().take(MAX_PLACES) {
        for function in users(code, address) {
            let flow = Flow::of(code, function);
            for call in &flow.calls {
                let first = call.arguments[0];
                if flow.node(first) == Node::Constant(address) {
                    from_call(&flow, call, format, findings);
                }
            }
        }
    }
}

/// The addresses of the texts in the image, and the texts.
fn texts<'a>(code: &Code<'a>) -> Vec<(u64, &'a [u8])> {
    let mut found = Vec::new();
    for (address, data) in code.segments() {
        for part in memmem::find_iter(data, TEXT).take(MAX_PLACES) {
            let before = &data[part.saturating_sub(MAX_TEXT)..part];
            let Some(end) = memchr::memrchr(0, before) else {
                continue;
            };
            let start = part - (before.len() - end - 1);
            let text = &data[start..part + TEXT.len()];
            found.push((address.wrapping_add(start as u64), text));
        }
    }
    found
}

/// The functions that have an instruction with this address: `mov $address, %rdi`, or `lea address(%rip), %rdi`.
fn users(code: &Code<'_>, address: u64) -> Vec<Range<u64>> {
    let Some((start, text)) = code.text() else {
        return Vec::new();
    };
    let low = code.relocated(address).to_le_bytes();
    let moved = memmem::find_iter(text, &low[..4]).filter_map(|place| {
        let code = text.get(place.checked_sub(3)?..place)?;
        matches!(code, [0x48, 0xc7, 0xc7]).then_some(place - 3)
    });
    let computed = memmem::find_iter(text, b"\x48\x8d\x3d").filter(|place| {
        let distance = crate::bytes::i32_at(text, place + 3);
        let next = start.wrapping_add(*place as u64 + 7);
        distance.is_some_and(|distance| next.wrapping_add_signed(distance.into()) == address)
    });
    let places = moved.chain(computed).take(MAX_PLACES);
    let users = places.filter_map(|place| {
        let at = start.wrapping_add(place as u64);
        code.function_around(at).or_else(|| unnamed(code, at))
    });
    users.collect()
}

/// The function around `at`, without symbols: begins at the last multiple of 16 from which the instructions lead there,
/// and that follows no other instruction.
fn unnamed(code: &Code<'_>, at: u64) -> Option<Range<u64>> {
    let first = at & !15;
    let mut starts = (0..MAX_BEFORE / 16).map(|step| first.wrapping_sub(step * 16));
    let start = starts.find(|start| {
        let before = code.bytes_from(start.wrapping_sub(1));
        let is_padded = before.is_some_and(|bytes| matches!(bytes[0], 0xcc | 0x90 | 0x00 | 0xc3));
        is_padded
            && code
                .instructions(*start..at.saturating_add(1))
                .any(|found| found.ip() == at)
    })?;
    Some(start..at.saturating_add(MAX_BEFORE))
}

/// Reads the arguments of the call that prints `format`.
fn from_call(flow: &Flow, call: &Call, format: &[u8], findings: &mut Findings) {
    let argument = |index: usize| -> Option<Value> {
        match call.arguments.get(index + 1) {
            Some(value) => Some(*value),
            None => call.pushed.get(index - 5).copied(),
        }
    };
    let count = |part: &[u8]| part.iter().filter(|byte| **byte == b'%').count();
    let Some(pid_index) = memmem::find(format, b"PID: %").map(|end| count(&format[..end])) else {
        return;
    };
    let Some((task, pid)) = argument(pid_index).and_then(|value| flow.read_from(value, 4)) else {
        return;
    };
    let Some(current) = flow.per_cpu(task) else {
        return;
    };
    let comm = match argument(pid_index + 1).map(|value| flow.node(value)) {
        Some(Node::Sum(base, offset)) if base == task => u64::try_from(offset).ok(),
        _ => None,
    };
    let Some(comm) = comm else {
        return;
    };
    findings.add_variable("current_task", current);
    findings.add_member("task_struct", "pid", pid);
    // The thread's and the process's id have always been neighbours, of 4 bytes each (`include/linux/sched.h`).
    findings.add_member("task_struct", "tgid", pid + 4);
    findings.add_member("task_struct", "comm", comm);
    let user = memmem::find(format, b"UID: %").map(|end| count(&format[..end]));
    let user = user
        .and_then(argument)
        .and_then(|value| flow.read_from(value, 4));
    let credentials = user.and_then(|(cred, effective)| {
        let (base, real) = flow.read_from(cred, 8)?;
        // It is the effective user of `real_cred`, which `cred` follows. uid, gid, suid, sgid and euid follow each other
        // (`include/linux/sched.h`, `include/linux/cred.h`).
        (base == task).then_some((real + 8, effective.checked_sub(16)?))
    });
    if let Some((credentials, user)) = credentials {
        findings.add_member("task_struct", "cred", credentials);
        findings.add_member("cred", "uid", user);
    }
}
