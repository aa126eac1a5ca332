//! Indirect calls and jumps of a kernel with retpolines (`arch/x86/lib/retpoline.S`). A thunk overwrites a return
//! address of its own with the target, and returns to it.
//!
//! The kernel's unwind table describes only a part of a thunk, and gives the target as the caller at its end. So the
//! thunk's instructions are recognized here.

use super::calls::follows_call;
use super::stack_memory::StackMemory;

/// Bytes of an address on the stack.
const WORD: u64 = 8;

/// True if `ip` is the end of a thunk. The thunk then returns to its target, and the return address of the thunk's
/// caller follows on the stack.
pub(super) fn is_at_end(memory: &mut impl StackMemory, ip: u64) -> bool {
    let code = code_around(memory, ip);
    code.is_some_and(|(before, next)| stores_target(before) && is_return(next))
}

/// The place of the return address of the thunk that runs at `ip`, with the stack pointer `sp`; `None` in other code.
pub(super) fn return_address_at(memory: &mut impl StackMemory, ip: u64, sp: u64) -> Option<u64> {
    let (before, next) = code_around(memory, ip)?;
    let offset = match next {
        // The call over the trap for speculation, which is a loop of 7 bytes, or INT3.
        [0xe8, 7 | 1, 0, 0] => 0,
        _ if stores_target(next) => WORD,
        _ if stores_target(before) && is_return(next) => WORD,
        // A thunk without the trap: LFENCE, and a jump to a register. A return thunk.
        [0xc3, ..]
        | [0x0f, 0xae, 0xe8, 0xff | 0x41]
        | [0xff, 0xe0..=0xe7, ..]
        | [0x41, 0xff, 0xe0..=0xe7, _] => 0,
        _ => return None,
    };
    let at = sp.checked_add(offset)?;
    let back = memory.word(at)?;
    follows_call(memory, back).then_some(at)
}

/// The four bytes of code before `ip`, and the four bytes from `ip` on.
fn code_around(memory: &mut impl StackMemory, ip: u64) -> Option<([u8; 4], [u8; 4])> {
    let [a, b, c, d, next @ ..] = memory.code_before(ip.checked_add(4)?)?;
    Some(([a, b, c, d], next))
}

/// True for `mov %register, (%rsp)`.
fn stores_target(code: [u8; 4]) -> bool {
    matches!(code, [0x48 | 0x4c, 0x89, register, 0x24] if register & 0xc7 == 0x04)
}

/// True for the instruction RET, or a jump to its replacement (`RET`, `arch/x86/include/asm/linkage.h`).
fn is_return(code: [u8; 4]) -> bool {
    matches!(code, [0xc3 | 0xe9, ..])
}
