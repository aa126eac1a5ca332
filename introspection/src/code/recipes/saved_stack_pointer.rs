//! The stack pointer of a task that isn't on a CPU: `__switch_to_asm` (`arch/x86/entry/entry_64.S`) saves the old one's
//! and loads the new one's, by instructions that are nowhere else.

use crate::bytes::u32_at;

use super::super::{Code, Findings};

/// `mov %rsp, OFFSET(%rdi)` and `mov OFFSET(%rsi), %rsp`, each before an offset of 4 bytes.
const SAVE: &[u8] = b"\x48\x89\xa7";
const LOAD: &[u8] = b"\x48\x8b\xa6";

/// Finds `task_struct.thread.sp`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    let Some((_, text)) = code.text() else {
        return;
    };
    let places = memchr::memmem::find_iter(text, SAVE).filter_map(|place| {
        let saved = u32_at(text, place + 3)?;
        let load = text.get(place + 7..)?;
        let loaded = u32_at(load, 3).filter(|_| load.starts_with(LOAD))?;
        (saved == loaded).then_some(u64::from(saved))
    });
    for offset in places {
        findings.add_member("task_struct", "thread.sp", offset);
    }
}
