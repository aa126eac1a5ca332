//! A return frame, which restores a thread's registers if this process can't restore them.
//!
//! It is the frame of a signal handler (`struct rt_sigframe`, `arch/x86/include/asm/sigframe.h`), written below the thread's
//! stack. The thread is sent to the code that does rt_sigreturn(2), with its stack pointer where a handler leaves it, and then has all its
//! registers and signals back.

use std::sync::LazyLock;

use kvmprof_introspection::bytes::u64_at;
use libc::user_regs_struct;

/// Bytes below the stack pointer that code may use (System V ABI for x86-64, 3.2.2).
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
/// An invalid mode of an alternate signal stack: with it, the thread keeps its alternate stack as it is.
const NO_STACK_MODE: u64 = 4;
/// Offset of `struct _fpx_sw_bytes` in the extended registers, and what it begins and the registers end with.
const SOFTWARE_BYTES: usize = 464;
const MAGIC_BEGIN: u32 = 0x4650_5853;
const MAGIC_END: u32 = 0x4650_5845;
/// The number of bytes that FXSAVE writes. XSAVE adds a header, which begins with the components in use (XSTATE_BV), and more.
const LEGACY: usize = 512;
const HEADER: usize = 64;
/// CPUID's leaf about XSAVE, and the component with AMX's tiles (XTILEDATA).
const EXTENDED_LEAF: u32 = 0xd;
const TILES: u32 = 18;

/// A frame, and the room beside it for the results of system calls.
#[derive(Debug)]
pub struct ReturnFrame {
    /// The address that `bytes` are written to. They begin with a return address, which a handler takes off the stack.
    pub address: u64,
    /// The frame.
    pub bytes: Vec<u8>,
    /// The address of the room.
    pub room: u64,
}

impl ReturnFrame {
    /// A frame that restores `registers`, the `extended` registers and the blocked signals. `signal_return` is the address of
    /// the instructions that do rt_sigreturn(2); `room` is how many bytes system calls need. `None` for extended registers in an unknown
    /// form, and for a stack pointer without room below it.
    pub fn new(
        registers: &user_regs_struct,
        mut extended: Vec<u8>,
        blocked: u64,
        signal_return: u64,
        room: u64,
    ) -> Option<Self> {
        without_unused_tiles(&mut extended, tiles());
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

/// The offset at which XSAVE puts AMX's tiles, in bytes from the start of the extended registers; `None` on processors without tiles. The
/// processor is asked only once, because in a guest CPUID causes an exit.
fn tiles() -> Option<usize> {
    static TILES_AT: LazyLock<Option<usize>> = LazyLock::new(|| {
        // SAFETY: every processor that runs 64-bit code has CPUID. Newer versions of Rust have it as a safe function.
        #[allow(unused_unsafe)]
        let leaf = unsafe { std::arch::x86_64::__cpuid_count(EXTENDED_LEAF, TILES) };
        let offset = usize::try_from(leaf.ebx).ok()?;
        (leaf.eax != 0 && offset >= LEGACY + HEADER).then_some(offset)
    });
    *TILES_AT
}

/// Removes unused tiles. ptrace(2) returns the tiles of every thread, but rt_sigreturn(2) accepts tiles only for threads that have
/// requested them (arch_prctl(2), ARCH_REQ_XCOMP_PERM); for other threads it would restore only what FXSAVE saves. A thread that uses tiles
/// has requested them.
fn without_unused_tiles(extended: &mut Vec<u8>, tiles: Option<usize>) {
    let Some(tiles) = tiles.filter(|tiles| *tiles < extended.len()) else {
        return;
    };
    let [Some(components), Some(in_use)] =
        [SOFTWARE_BYTES, LEGACY].map(|place| u64_at(extended, place))
    else {
        return;
    };
    let bit = 1 << TILES;
    if components & bit != 0 && in_use & bit == 0 {
        let rest = (components & !bit).to_ne_bytes();
        extended.truncate(tiles);
        extended[SOFTWARE_BYTES..SOFTWARE_BYTES + 8].copy_from_slice(&rest);
    }
}

/// The extended registers in the form of rt_sigreturn(2): those of XSAVE, with their size and components in the software bytes.
fn with_software_bytes(mut extended: Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::try_from(extended.len()).ok()?;
    if extended.len() == LEGACY {
        extended.get_mut(SOFTWARE_BYTES..)?.fill(0);
        return Some(extended);
    }
    if extended.len() < LEGACY + HEADER {
        return None;
    }
    // ptrace(2) puts the components (XCR0) there.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Extended registers with these components, of which `in_use` are in use.
    fn extended(length: usize, components: u64, in_use: u64) -> Vec<u8> {
        let mut bytes = vec![7; length];
        bytes[SOFTWARE_BYTES..SOFTWARE_BYTES + 8].copy_from_slice(&components.to_ne_bytes());
        bytes[LEGACY..LEGACY + 8].copy_from_slice(&in_use.to_ne_bytes());
        bytes
    }

    /// As a processor with AMX has it: 8 KiB of tiles behind the other components.
    const OTHERS: u64 = 0x2_02e7;
    const WITH_TILES: u64 = OTHERS | 1 << TILES;
    const LENGTH: usize = 11_008;
    const OFFSET: usize = 2816;

    /// The length and the components that the kernel reads from the software bytes.
    fn length_and_components(extended: &[u8]) -> (u32, u64) {
        let software = &extended[SOFTWARE_BYTES..];
        let length = u32::from_ne_bytes(software[16..20].try_into().unwrap());
        (length, u64_at(software, 8).unwrap())
    }

    #[test]
    fn unused_tiles_are_left_out() {
        let framed = |mut bytes: Vec<u8>, tiles| {
            without_unused_tiles(&mut bytes, tiles);
            let framed = with_software_bytes(bytes).unwrap();
            let (length, components) = length_and_components(&framed);
            assert_eq!(framed.len(), usize::try_from(length).unwrap() + 4);
            assert!(framed.ends_with(&MAGIC_END.to_ne_bytes()));
            (usize::try_from(length).unwrap(), components)
        };
        let unused = extended(LENGTH, WITH_TILES, OTHERS);
        assert_eq!(framed(unused.clone(), Some(OFFSET)), (OFFSET, OTHERS));
        let used = extended(LENGTH, WITH_TILES, WITH_TILES);
        assert_eq!(framed(used, Some(OFFSET)), (LENGTH, WITH_TILES));
        // A processor without them, and a kernel that doesn't tell them.
        assert_eq!(framed(unused, None), (LENGTH, WITH_TILES));
        let without = extended(OFFSET, OTHERS, OTHERS);
        assert_eq!(framed(without, Some(OFFSET)), (OFFSET, OTHERS));
    }

    #[test]
    fn registers_of_an_unknown_form_are_refused() {
        for length in [0, LEGACY - 1, LEGACY + 1, LEGACY + HEADER - 1] {
            let mut bytes = vec![0; length];
            without_unused_tiles(&mut bytes, Some(OFFSET));
            assert_eq!(with_software_bytes(bytes), None, "{length}");
        }
        assert!(with_software_bytes(vec![0; LEGACY]).is_some());
    }
}
