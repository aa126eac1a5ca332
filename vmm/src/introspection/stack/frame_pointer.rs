//! User stacks by frame pointers: RBP points to the caller's RBP, with the return address after it
//! (System V ABI for x86-64, section 3.2.2).

use kvmprof_devices::profiling::StackEnd;

use super::UserRegisters;
use super::memory::StackMemory;

/// Most bytes between two frames: a thread's whole stack by default (RLIMIT_STACK).
const MAX_FRAME: u64 = 8 << 20;
/// Bytes of the return address and the caller's frame pointer.
const LINKAGE: u64 = 16;

/// Walks the stack of code that runs with `start`, and hands each frame to `push`, which says whether it
/// had room.
pub fn walk(
    start: &UserRegisters,
    memory: &mut impl StackMemory,
    mut push: impl FnMut(u64) -> bool,
) -> StackEnd {
    if !push(start.ip) {
        return StackEnd::Truncated;
    }
    let mut frame = Caller {
        ip: start.ip,
        sp: start.sp,
        bp: start.bp,
    };
    loop {
        frame = match step(frame.sp, frame.bp, memory) {
            Ok(caller) => caller,
            Err(end) => return end,
        };
        if !push(frame.ip - 1) {
            return StackEnd::Truncated;
        }
    }
}

/// The caller of a function: where it goes on, with which registers.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The return address, which lies behind a call.
    pub ip: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer, if it has one.
    pub bp: u64,
}

/// The caller of a function with a frame, whose registers are `sp` and `bp`.
///
/// # Errors
/// How the stack ends, if it ends here.
pub fn step(sp: u64, bp: u64, memory: &mut impl StackMemory) -> Result<Caller, StackEnd> {
    // The outermost frame's is 0 (System V ABI, section 3.4.1).
    if bp == 0 {
        return Err(StackEnd::Complete);
    }
    let inside = bp.checked_sub(sp).is_some_and(|size| size < MAX_FRAME);
    if !inside || !bp.is_multiple_of(8) || !is_user(bp) {
        return Err(StackEnd::Broken);
    }
    let (Some(caller), Some(back)) = (memory.word(bp), memory.word(bp + 8)) else {
        return Err(StackEnd::Broken);
    };
    if back == 0 {
        return Err(StackEnd::Complete);
    }
    if !is_user(back) || !follows_call(memory, back) {
        return Err(StackEnd::Broken);
    }
    Ok(Caller {
        ip: back,
        sp: bp + LINKAGE,
        bp: caller,
    })
}

/// True for addresses in the lower half, which user code has.
pub fn is_user(address: u64) -> bool {
    address >> 63 == 0
}

/// True when a call instruction ends right before `back`: code without frame pointers keeps other values in RBP,
/// which would lead to anything.
pub fn follows_call(memory: &mut impl StackMemory, back: u64) -> bool {
    let Some(code) = memory.code_before(back) else {
        return false;
    };
    // CALL rel32 (SDM volume 2, CALL).
    if code[3] == 0xe8 {
        return true;
    }
    // CALL r/m64 is FF /2, here with each of the lengths that its operand may have.
    [2, 3, 4, 6, 7].into_iter().any(|length| {
        let [opcode, operand] = [code[8 - length], code[9 - length]];
        opcode == 0xff
            && operand >> 3 & 7 == 2
            && operand_length(operand, code[10 - length.max(3)]) == length
    })
}

/// Bytes of an instruction with a one-byte opcode and this ModRM byte, which `next` follows (SDM volume 2,
/// section 2.1.3).
fn operand_length(operand: u8, next: u8) -> usize {
    let (mode, register) = (operand >> 6, operand & 7);
    let has_scale = mode != 3 && register == 4;
    let displacement = match mode {
        0 if register == 5 || has_scale && next & 7 == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    2 + usize::from(has_scale) + displacement
}
