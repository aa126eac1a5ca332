//! Unwinds user stacks by frame pointers: RBP points to the caller's RBP, and the return address follows it (System V
//! ABI for x86-64, section 3.2.2).
//!
//! Code without unwind information needn't have frame pointers. Then RBP leads to the frame of a function further out,
//! and the callers in between are missing. Their return addresses lie below that frame, so a frame is believed only if
//! no such address may belong to the function ([`Candidates`]). Otherwise the stack ends.

use kvmprof_recording::StackEnd;

use super::UserRegisters;
use super::calls::{self, Candidates, follows_call};
use super::stack_memory::StackMemory;
use super::user_registers::FrameRegisters;

/// Maximum distance between two frames, in bytes: the default size of a thread's whole stack (RLIMIT_STACK).
const MAX_FRAME: u64 = 8 << 20;
/// The code behind the call of a thread's function in musl, which ends the thread: `mov %eax,%edi; xor %eax,%eax;
/// mov $__NR_exit,%al; syscall` (`src/thread/x86_64/clone.s`).
pub const THREAD_EXIT: [u8; 8] = [0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05];
/// Bytes of the return address and the caller's frame pointer.
const LINKAGE: u64 = 16;
/// Bytes above the outermost frame that are searched for return addresses.
pub const ABOVE: u64 = 512;

/// The instruction behind the call with which programs begin, which never returns.
const HLT: u8 = 0xf4;

/// Unwinds the stack from `start` and passes each frame to `push`, which returns whether there was room for it. May read
/// `reads` words.
///
/// The program's unwind information isn't known yet: its code may have some, and no frame pointers. Then 0 in RBP is what the thread began
/// with, or any number, and not the end of the stack. Only the code of the outermost function shows that there is no other.
pub fn walk(
    start: &UserRegisters,
    reads: &mut u32,
    memory: &mut impl StackMemory,
    mut push: impl FnMut(u64) -> bool,
) -> StackEnd {
    let mut frame = start.at;
    let mut is_exact = start.is_exact;
    if !push(frame.ip.wrapping_sub(u64::from(!is_exact))) {
        return StackEnd::Truncated;
    }
    loop {
        frame = match step(&frame, is_exact, false, reads, memory) {
            Ok(caller) => caller,
            Err(StackEnd::Broken) if !is_exact && is_begin(frame.ip, memory) => {
                return StackEnd::Complete;
            }
            Err(end) => return end,
        };
        is_exact = false;
        if !push(frame.ip - 1) {
            return StackEnd::Truncated;
        }
    }
}

/// Finds the caller of a function without unwind information. `is_exact` says whether its program counter is that of the
/// next instruction, `has_frames` whether the function that it called was found by its frame pointer, too. May read
/// `reads` words.
///
/// Code without frame pointers may have any value in RBP, often the 0 from the thread's start. So 0 is accepted as the
/// end of the stack only after a frame, which shows that the code uses frame pointers, and if no return address follows.
///
/// # Errors
/// The kind of the stack's end, if the stack ends here.
pub fn step(
    frame: &FrameRegisters,
    is_exact: bool,
    has_frames: bool,
    reads: &mut u32,
    memory: &mut impl StackMemory,
) -> Result<FrameRegisters, StackEnd> {
    if is_exact && let Some(caller) = calls::without_frame(frame, memory) {
        return Ok(caller);
    }
    let bp = frame.bp().ok_or(StackEnd::Broken)?;
    // The outermost frame's RBP is 0 (System V ABI, section 3.4.1).
    if bp == 0 {
        return Err(match has_frames {
            true => end_at(frame.sp, reads, memory),
            false => StackEnd::Broken,
        });
    }
    let Linkage { back, caller, sp } = linkage(frame.sp, bp, memory).ok_or(StackEnd::Broken)?;
    let mut candidates = Candidates::new(frame.ip, back, reads, memory);
    let is_known = candidates.belong_to_no_frame(frame.sp..bp, memory);
    if !is_known || !memory.may_use(back) {
        return Err(StackEnd::Broken);
    }
    if back != 0 && follows_call(memory, back) {
        return Ok(FrameRegisters::new(back, sp, Some(caller)).assumed());
    }
    // Without a call before this address, the stack was set up to return to it.
    let is_started = back == 0 || caller == 0 && memory.code_before(back).is_some();
    Err(match is_started {
        true if caller == 0 && is_go_exit(memory, back) => StackEnd::Complete,
        true if has_frames => end_at(sp, reads, memory),
        _ => StackEnd::Broken,
    })
}

/// Whether the outermost function of a stack continues at `back`, by the code there: that of a program's start, or the one that has called a
/// thread's function.
fn is_begin(back: u64, memory: &mut impl StackMemory) -> bool {
    let code = calls::code_from(memory, back);
    code.is_some_and(|code| code[0] == HLT || code == THREAD_EXIT)
}

/// The kind of end of a stack whose outermost function seems to have the stack pointer `sp`: behind it there are no more
/// return addresses.
pub fn end_at(sp: u64, reads: &mut u32, memory: &mut impl StackMemory) -> StackEnd {
    match calls::has_return_addresses(sp..sp.saturating_add(ABOVE), reads, memory) {
        true => StackEnd::Broken,
        false => StackEnd::Complete,
    }
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
