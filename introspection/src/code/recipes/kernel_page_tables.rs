//! The kernel's own page tables, `init_top_pgt`: what `init_mm.pgd` points to.

use super::super::flow::Use;
use super::super::{Code, Findings};
use crate::bytes::u64_at;

/// Functions whose first variable of 8 bytes is `init_mm.pgd`, by `pgd_offset_k` (`arch/x86/mm/pat/set_memory.c`,
/// `mm/vmalloc.c`).
const USERS: [&str; 2] = ["lookup_address", "vmalloc_to_page"];
/// Page tables begin at a page.
const PAGE: u64 = 4096;

/// Finds it. The pointer has been in the image since the kernel was linked.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    for flow in code.flows(USERS) {
        let mut words = flow.accesses.iter().filter_map(|access| {
            let is_word = access.kind == Use::Read && access.width == 8;
            flow.variable(access.place).filter(|_| is_word)
        });
        let pointer = words.next().and_then(|variable| code.bytes_from(variable));
        let Some(tables) = pointer.and_then(|bytes| u64_at(bytes, 0)) else {
            continue;
        };
        let tables = code.linked(tables);
        if tables.is_multiple_of(PAGE) && code.bytes_from(tables).is_some() {
            findings.add_variable("init_top_pgt", tables);
        }
    }
}
