//! The nodes of an xarray: `struct xa_node` (`include/linux/xarray.h`).

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::super::flow::{Flow, Node, Use, Value};
use super::super::{Code, Findings};
use crate::only;

const NODE: &str = "xa_node";
/// What is added to a node's address to tell it from other entries.
const TAG: i64 = 2;
/// The number of words after the slots: three bits of marks for each slot.
const MARKS: u64 = 3;

/// Finds members of a node, and its size. Since 6.1, some compilers have a part of `xas_load` in a function of its own.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    for flow in code.flows(["xas_load", "xas_descend"]) {
        members(&flow, findings);
    }
    let Some(slots) = findings.member(NODE, "slots") else {
        return;
    };
    for name in ["xas_start", "xas_load", "xas_descend"] {
        if let Some(count) = count(code, name) {
            let marks = MARKS * count.div_ceil(64);
            findings.add_size(NODE, slots + 8 * (count + marks));
        }
    }
}

/// A node's `shift` is a byte, and its slots are an array of words.
fn members(flow: &Flow, findings: &mut Findings) {
    for access in &flow.accesses {
        let tag = match tag_of(flow, access.place.base) {
            Some(tag) if access.kind == Use::Read => tag,
            _ => continue,
        };
        let Ok(offset) = u64::try_from(access.place.offset.wrapping_add(tag)) else {
            continue;
        };
        match (access.width, access.place.scale) {
            (1, 0) => findings.add_member(NODE, "shift", offset),
            (8, 8) => findings.add_member(NODE, "slots", offset),
            _ => {}
        }
    }
}

/// What is added to a node's address in `value`: the result of a call, or the second argument.
fn tag_of(flow: &Flow, value: Value) -> Option<i64> {
    match flow.node(value) {
        Node::Result(_, 0) => Some(TAG),
        Node::Argument(1) => Some(0),
        _ => None,
    }
}

/// The number of a node's slots, a power of two: an index that was shifted by CL is compared with the last slot's, or
/// made one by the bits that are kept.
fn count(code: &Code<'_>, name: &str) -> Option<u64> {
    let instructions: Vec<Instruction> = code.instructions(code.function(name)?).collect();
    let is_shift = |instruction: &Instruction| {
        instruction.mnemonic() == Mnemonic::Shr && instruction.op1_register() == Register::CL
    };
    let bits = |shift: usize| {
        let index = instructions.get(shift)?.op0_register().full_register();
        let after = instructions.get(shift + 1..)?.iter().take(4);
        let mut bounds = after.filter_map(|next| {
            let is_bound = matches!(next.mnemonic(), Mnemonic::And | Mnemonic::Cmp)
                && next.op0_kind() == OpKind::Register
                && next.op0_register().full_register() == index;
            is_bound.then(|| next.try_immediate(1).ok())?
        });
        let last = bounds.next()?;
        let count = last.checked_add(1)?;
        (count.is_power_of_two() && (4..=256).contains(&count)).then_some(count)
    };
    let shifts = (0..instructions.len()).filter(|at| is_shift(&instructions[*at]));
    only(shifts.filter_map(bits))
}
