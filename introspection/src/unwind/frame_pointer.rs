//! Unwinds user stacks by frame pointers: RBP points to the caller's RBP, and the return address follows it (System V
//! ABI for x86-64, section 3.2.2).

use kvmprof_recording::StackEnd;

use super::UserRegisters;
use super::stack_memory::StackMemory;

/// Maximum distance between two frames, in bytes: the default size of a thread's whole stack (RLIMIT_STACK).
const MAX_FRAME: u64 = 8 << 20;
/// Bytes of the return address and the caller's frame pointer.
const LINKAGE: u64 = 16;

/// Unwinds the stack from `start` and passes each frame to `push`, which returns whether there was room for it.
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
    let mut has_frames = false;
    loop {
        frame = match step(frame.sp, frame.bp, has_frames, memory) {
            Ok(caller) => caller,
            Err(end) => return end,
        };
        has_frames = true;
        if !push(frame.ip - 1) {
            return StackEnd::Truncated;
        }
    }
}

/// The caller of a function: its return address and registers.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The return address, right after a call instruction.
    pub ip: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer, if it has one.
    pub bp: u64,
}

/// Finds the caller of a function with a frame, with registers `sp` and `bp`. `has_frames` says whether the function
/// that it called also has a frame.
///
/// Code without frame pointers may have any value in RBP, often the 0 from the thread's start. So 0 is accepted as the
/// end of the stack only after a frame, which shows that the code uses frame pointers.
///
/// # Errors
/// The kind of the stack's end, if the stack ends here.
pub fn step(
    sp: u64,
    bp: u64,
    has_frames: bool,
    memory: &mut impl StackMemory,
) -> Result<Caller, StackEnd> {
    let outermost = if has_frames {
        StackEnd::Complete
    } else {
        StackEnd::Broken
    };
    // The outermost frame's RBP is 0 (System V ABI, section 3.4.1).
    if bp == 0 {
        return Err(outermost);
    }
    let Linkage { back, caller, sp } = linkage(sp, bp, memory).ok_or(StackEnd::Broken)?;
    if back == 0 {
        return Err(outermost);
    }
    if !memory.may_use(back) {
        return Err(StackEnd::Broken);
    }
    if !follows_call(memory, back) {
        // Without a call before this address, the stack was set up to return to it.
        let is_started = caller == 0 && memory.code_before(back).is_some();
        return Err(match is_started {
            true if is_go_exit(memory, back) => StackEnd::Complete,
            true => outermost,
            false => StackEnd::Broken,
        });
    }
    Ok(Caller {
        ip: back,
        sp,
        bp: caller,
    })
}

/// The data that RBP points to.
pub struct Linkage {
    /// The word with the return address.
    pub back: u64,
    /// The word before it, with the caller's frame pointer.
    pub caller: u64,
    /// The address of the word after the return address, which is the caller's stack pointer.
    pub sp: u64,
}

/// Reads the data that `bp` points to. `None` if it can't be the frame of a function whose stack pointer is `sp`.
pub fn linkage(sp: u64, bp: u64, memory: &mut impl StackMemory) -> Option<Linkage> {
    let inside = bp.checked_sub(sp).is_some_and(|size| size < MAX_FRAME);
    if !inside || !bp.is_multiple_of(8) || !memory.may_use(bp) {
        return None;
    }
    let above = bp.checked_add(LINKAGE)?;
    Some(Linkage {
        caller: memory.word(bp)?,
        back: memory.word(bp + 8)?,
        sp: above,
    })
}

/// True if `back` is after the first instruction of Go's `runtime.goexit`, a NOP before a call: all goroutines return
/// there (`runtime/asm_amd64.s`).
fn is_go_exit(memory: &mut impl StackMemory, back: u64) -> bool {
    let code = back
        .checked_add(4)
        .and_then(|after| memory.code_before(after));
    code.is_some_and(|code| code[3..5] == [0x90, 0xe8])
}

/// True if a call instruction ends right before `back`. Code without frame pointers has other values in RBP, which
/// could lead to any address.
pub fn follows_call(memory: &mut impl StackMemory, back: u64) -> bool {
    let Some(code) = memory.code_before(back) else {
        return false;
    };
    // CALL rel32 (SDM volume 2, CALL).
    if code[3] == 0xe8 {
        return true;
    }
    // CALL r/m64 is FF /2, with any possible length of its operand.
    [2, 3, 4, 6, 7].into_iter().any(|length| {
        let [opcode, operand] = [code[8 - length], code[9 - length]];
        opcode == 0xff
            && operand >> 3 & 7 == 2
            && operand_length(operand, code[10 - length.max(3)]) == length
    })
}

/// The length of an instruction with a one-byte opcode and this ModRM byte, followed by `next` (SDM volume 2, section
/// 2.1.3).
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
