//! Frames of signal handlers: the code that they return to, and what they have interrupted.

use super::stack_memory::StackMemory;
use super::user_registers::{FrameRegisters, number};

/// The end of the code to which a signal handler returns: the last 8 bytes of `mov $__NR_rt_sigreturn,%rax; syscall`,
/// which has 9 bytes. Unwinders and debuggers recognize the code by these bytes.
const SIGNAL_RETURN: [u8; 8] = [0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
const SIGNAL_RETURN_LENGTH: u64 = 9;

/// Offsets of the registers that the kernel saves for a signal handler, in bytes from the handler's stack pointer
/// (`struct ucontext`, `struct sigcontext`, `arch/x86/include/uapi/asm`).
mod saved {
    use super::super::user_registers::number;

    pub const SP: u64 = 160;
    pub const IP: u64 = 168;
    /// R8 to R15 begin here.
    pub const R8: u64 = 40;
    /// Other registers.
    pub const OTHERS: [(u16, u64); 7] = [
        (number::RDI, 104),
        (number::RSI, 112),
        (number::RBP, 120),
        (number::RBX, 128),
        (number::RDX, 136),
        (number::RAX, 144),
        (number::RCX, 152),
    ];
}

/// The code that a signal interrupted. The handler has returned, and the stack pointer is `sp`.
pub fn interrupted(sp: u64, memory: &mut impl StackMemory) -> Option<FrameRegisters> {
    let mut word = |offset: u64| memory.word(sp.checked_add(offset)?);
    let mut registers = FrameRegisters::new(word(saved::IP)?, word(saved::SP)?, None);
    let numbered = (number::R8..=number::R15).zip((saved::R8..).step_by(8));
    for (register, offset) in numbered.chain(saved::OTHERS) {
        registers.set(register, word(offset));
    }
    Some(registers)
}

/// Whether `address` is the return address of a signal handler.
pub fn returns_from_signal(memory: &mut impl StackMemory, address: u64) -> bool {
    address
        .checked_add(SIGNAL_RETURN_LENGTH)
        .and_then(|end| memory.code_before(end))
        == Some(SIGNAL_RETURN)
}
