//! The count of interrupts that are being serviced: `irq_enter_rcu` (`kernel/softirq.c`) adds to it.

use iced_x86::{Instruction, Mnemonic};
use memchr::memmem;

use super::super::flow::{Node, Use};
use super::super::{Code, Findings};
use crate::bytes::u32_at;

/// What a hard interrupt adds to the count, in the layout of kernels up to 7.0 (`HARDIRQ_OFFSET`,
/// `include/linux/preempt.h`).
const HARDIRQ: u64 = 0x1_0000;

/// What it adds in the layout of later kernels, in which the number above counts how often interrupts were disabled.
const MOVED_HARDIRQ: u64 = 0x100_0000;

/// The first bytes of instructions that add a number to a per-CPU variable, with an absolute and with a relative address
/// of 4 bytes, which the number follows.
const ADDITIONS: [&[u8]; 2] = [b"\x65\x81\x04\x25", b"\x65\x81\x05"];

/// Finds `__preempt_count`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    let Some(flow) = code.flows(["irq_enter_rcu", "irq_enter"]).next() else {
        anywhere(code, findings);
        return;
    };
    for access in &flow.accesses {
        let instruction = &access.instruction;
        let is_count = access.kind == Use::Update
            && access.width == 4
            && instruction.mnemonic() == Mnemonic::Add
            && instruction.try_immediate(1).ok() == Some(HARDIRQ);
        if is_count && flow.node(access.place.base) == Node::PerCpu {
            findings.add_variable("__preempt_count", access.place.offset.cast_unsigned());
        }
    }
}

/// Nothing else in a kernel of the earlier layout has this number added, so no symbol is needed.
fn anywhere(code: &Code<'_>, findings: &mut Findings) {
    let Some((start, text)) = code.text() else {
        return;
    };
    let mut counts = Vec::new();
    for first in ADDITIONS {
        for place in memmem::find_iter(text, first) {
            let added = u32_at(text, place + first.len() + 4).map(u64::from);
            let instruction = code.instruction(start.wrapping_add(place as u64));
            let is_it = |found: &Instruction| found.mnemonic() == Mnemonic::Add;
            match (added, instruction.filter(is_it)) {
                (Some(MOVED_HARDIRQ), Some(_)) => return,
                (Some(HARDIRQ), Some(found)) => counts.push(found.memory_displacement64()),
                _ => {}
            }
        }
    }
    for count in counts {
        findings.add_variable("__preempt_count", count);
    }
}
