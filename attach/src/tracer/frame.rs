//! A return frame: what a thread goes on by if nobody sets its registers back.
//!
//! It is the frame of a signal handler (`struct rt_sigframe`, `arch/x86/include/asm/sigframe.h`), laid below the thread's
//! stack. A thread that was sent to `syscall; ret` with its stack pointer at the frame's start does the system call, returns
//! to the code that does rt_sigreturn(2), and has all its registers back.

use libc::user_regs_struct;

/// What code below the stack pointer may use (System V ABI for x86-64, 3.2.2), in bytes.
const RED_ZONE: u64 = 128;
/// XSAVE's alignment.
const EXTENDED_ALIGNMENT: u64 = 64;
/// Offsets in `struct sigcontext_64`, after the 40 bytes of `struct ucontext` before it (`arch/x86/include/uapi/asm/`).
const CONTEXT: usize = 40;
const CONTEXT_SEGMENTS: usize = CONTEXT + 18 * 8;
const CONTEXT_EXTENDED: usize = CONTEXT + 23 * 8;
const SIGNAL_MASK: usize = CONTEXT + 256;
const UCONTEXT: usize = SIGNAL_MASK + 8;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const FLAGS: u64 = 1 | 2 | 4;
/// No mode of an alternate signal stack: with it, the thread keeps the one that it has.
const NO_STACK_MODE: u64 = 4;
/// Offset of `struct _fpx_sw_bytes` in the extended registers, and what it begins and the registers end with.
const SOFTWARE_BYTES: usize = 464;
const MAGIC_BEGIN: u32 = 0x4650_5853;
const MAGIC_END: u32 = 0x4650_5845;
/// What FXSAVE writes; XSAVE adds a header of 64 bytes, and more.
const LEGACY: usize = 512;

/// A frame, and the room beside it for what system calls are to write.
#[derive(Debug)]
pub struct ReturnFrame {
    /// Where `bytes` go: the stack pointer for the system calls.
    pub address: u64,
    /// The frame.
    pub bytes: Vec<u8>,
    /// The address of the room.
    pub room: u64,
}

impl ReturnFrame {
    /// One that gives `registers`, the `extended` ones and the blocked signals back. `signal_return` is the address of
    /// what does rt_sigreturn(2); `room` is how many bytes system calls need. `None` for extended registers in an unknown
    /// form, and a stack pointer without room below it.
    pub fn new(
        registers: &user_regs_struct,
        extended: Vec<u8>,
        blocked: u64,
        signal_return: u64,
        room: u64,
    ) -> Option<Self> {
        let extended = with_software_bytes(extended)?;
        let room = aligned(registers.rsp.checked_sub(RED_ZONE + room)?, 16);
        let extended_address =
            aligned(room.checked_sub(extended.len() as u64)?, EXTENDED_ALIGNMENT);
        let head = size_of::<u64>() + UCONTEXT;
        // Functions expect the stack as a call leaves it.
        let address = aligned(extended_address.checked_sub(head as u64 + 16)?, 16) + 8;
        let mut bytes = vec![0; usize::try_from(extended_address - address).ok()?];
        bytes[..8].copy_from_slice(&signal_return.to_ne_bytes());
        let context = &mut bytes[8..];
        let mut put = |offset: usize, value: u64| {
            context[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        };
        put(0, FLAGS);
        put(24, NO_STACK_MODE);
        let r = registers;
        let general = [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx,
            r.rdx, r.rax, r.rcx, r.rsp, r.rip, r.eflags,
        ];
        for (index, value) in general.into_iter().enumerate() {
            put(CONTEXT + 8 * index, value);
        }
        // Four words of 16 bits: CS, GS, FS, SS.
        put(CONTEXT_SEGMENTS, (r.cs & 0xffff) | (r.ss & 0xffff) << 48);
        put(CONTEXT_EXTENDED, extended_address);
        put(SIGNAL_MASK, blocked);
        bytes.extend_from_slice(&extended);
        Some(Self {
            address,
            bytes,
            room,
        })
    }
}

fn aligned(address: u64, alignment: u64) -> u64 {
    address - address % alignment
}

/// The extended registers as rt_sigreturn(2) takes them: those of XSAVE with the size and the components that they have.
fn with_software_bytes(mut extended: Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::try_from(extended.len()).ok()?;
    if extended.len() == LEGACY {
        extended.get_mut(SOFTWARE_BYTES..)?.fill(0);
        return Some(extended);
    }
    if extended.len() < LEGACY + 64 {
        return None;
    }
    // There ptrace(2) tells the components (XCR0).
    let software = extended.get_mut(SOFTWARE_BYTES..SOFTWARE_BYTES + 48)?;
    let mut components = [0; 8];
    components.copy_from_slice(&software[..8]);
    software.fill(0);
    software[..4].copy_from_slice(&MAGIC_BEGIN.to_ne_bytes());
    software[4..8].copy_from_slice(&(length + 4).to_ne_bytes());
    software[8..16].copy_from_slice(&components);
    software[16..20].copy_from_slice(&length.to_ne_bytes());
    extended.extend_from_slice(&MAGIC_END.to_ne_bytes());
    Some(extended)
}
