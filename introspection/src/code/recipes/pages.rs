//! What the kernel keeps of each page of memory: `struct page` (`include/linux/mm_types.h`).

use iced_x86::{Mnemonic, OpKind};

use super::super::flow::Use;
use super::super::{Code, Findings};

/// Finds the size of a `struct page`, where all of them are, and how a page says that it has its file's contents.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    addresses(code, findings);
    // `simple_read_folio` (before 5.19 `simple_readpage`) and `simple_write_end` (`fs/libfs.c`) set this bit, and no other.
    for flow in code.flows(["simple_read_folio", "simple_readpage", "simple_write_end"]) {
        for access in &flow.accesses {
            let instruction = &access.instruction;
            let is_set = access.kind == Use::Update
                && access.is_atomic()
                && instruction.mnemonic() == Mnemonic::Or
                && access.width == 1;
            let bits = instruction.try_immediate(1).ok().filter(|_| is_set);
            let Some(bits) = bits.filter(|bits| bits.is_power_of_two() && *bits < 0x100) else {
                continue;
            };
            if let Ok(flags) = u64::try_from(access.place.offset) {
                // The bit's byte in the flags, which are at the structure's start.
                findings.add_member("page", "flags", flags & !7);
                let bit = (flags & 7) * 8 + u64::from(bits.trailing_zeros());
                findings.add_member("pageflags", "PG_uptodate", bit);
            }
        }
    }
}

/// `free_pages(address, order)` (`mm/page_alloc.c`) multiplies the number of the page by the structure's size, by a shift,
/// and adds the first one's address, which is a variable unless the kernel has it in a constant.
fn addresses(code: &Code<'_>, findings: &mut Findings) {
    let Some(function) = code.function("free_pages") else {
        return;
    };
    let instructions: Vec<_> = code.instructions(function).collect();
    for pair in instructions.windows(2) {
        let [shift, add] = pair else {
            continue;
        };
        let size = shift
            .try_immediate(1)
            .ok()
            .filter(|bits| (5..=8).contains(bits));
        let (Some(bits), Mnemonic::Shl) = (size, shift.mnemonic()) else {
            continue;
        };
        if add.mnemonic() != Mnemonic::Add || add.op0_register() != shift.op0_register() {
            continue;
        }
        findings.add_size("page", 1 << bits);
        if add.op1_kind() == OpKind::Memory && add.is_ip_rel_memory_operand() {
            findings.add_variable("vmemmap_base", add.memory_displacement64());
        }
    }
}
