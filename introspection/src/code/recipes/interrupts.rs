//! The count of interrupts that are being serviced: `irq_enter_rcu` (`kernel/softirq.c`) adds to it.

use iced_x86::Mnemonic;

use super::super::flow::{Node, Use};
use super::super::{Code, Findings};

/// What a hard interrupt adds to the count, in the layout of kernels up to 7.0 (`HARDIRQ_OFFSET`,
/// `include/linux/preempt.h`).
const HARDIRQ: u64 = 0x1_0000;

/// Finds `__preempt_count`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    let functions = ["irq_enter_rcu", "irq_enter"].into_iter();
    let Some(flow) = functions.filter_map(|name| code.flow(name)).next() else {
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
