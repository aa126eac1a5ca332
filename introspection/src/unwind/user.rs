//! Unwinds user stacks by the unwind information of programs and libraries, and by frame pointers in code without it.

use std::fmt;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use kvmprof_recording::StackEnd;

use super::frame_pointer::{self, Caller, follows_call};
use super::stack_memory::{CopiedMemory, StackCopy, StackMemory};
use super::{UnwindTable, UserRegisters};

/// Maximum number of words that are read for one stack.
pub(super) const MAX_READS: u32 = 4096;
/// Maximum number of signal handlers on one stack.
const MAX_SIGNALS: u32 = 8;
/// Stack pointers below this address are invalid, because the first page can't be mapped (`mmap_min_addr`).
const LOWEST_STACK: u64 = 4096;
/// An invalid frame pointer. The address 16 bytes above it isn't a stack, either.
const NO_FRAME: u64 = LOWEST_STACK - 16;
/// The end of the code to which a signal handler returns: the last 8 bytes of `mov $__NR_rt_sigreturn,%rax; syscall`,
/// which has 9 bytes. Unwinders and debuggers recognize the code by these bytes.
const SIGNAL_RETURN: [u8; 8] = [0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
const SIGNAL_RETURN_LENGTH: u64 = 9;
/// Offsets of the registers that the kernel saves for a signal handler, in bytes from the handler's stack pointer
/// (`struct ucontext`, `struct sigcontext`, `arch/x86/include/uapi/asm`).
mod saved {
    pub const BP: u64 = 120;
    pub const SP: u64 = 160;
    pub const IP: u64 = 168;
}

/// Unwinds the stacks of one address space.
pub struct UserUnwinder {
    /// Sorted by address.
    spans: Vec<Span>,
    unwinder: UnwinderX86_64<Arc<[u8]>>,
}

/// An executable mapping of a file with unwind information.
struct Span {
    begin: u64,
    end: u64,
    /// The distance of its addresses from the file's own; wrapping.
    bias: u64,
    table: Arc<UnwindTable>,
}

impl fmt::Debug for UserUnwinder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UserUnwinder")
            .field("spans", &self.spans.len())
            .finish_non_exhaustive()
    }
}

/// A cache for unwinding the stacks of one address space. It belongs to one vCPU's thread.
#[derive(Default)]
pub struct UnwindCache {
    cache: Option<Box<CacheX86_64>>,
}

impl fmt::Debug for UnwindCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("UnwindCache")
    }
}

impl UserUnwinder {
    /// The unwinder of an address space with these mappings: for each the first address, the first address after it,
    /// the offset in the file, and the file's unwind information. Mappings don't overlap.
    pub fn new(mappings: impl IntoIterator<Item = (u64, u64, u64, Arc<UnwindTable>)>) -> Self {
        let mut spans = Vec::new();
        let mut unwinder = UnwinderX86_64::new();
        for (begin, end, offset, table) in mappings {
            let Some(bias) = table.bias(begin, offset) else {
                continue;
            };
            let sections = ExplicitModuleSectionInfo {
                base_svma: table.base,
                eh_frame_svma: Some(range(table.address, &table.section)),
                eh_frame: Some(Arc::clone(&table.section)),
                eh_frame_hdr_svma: Some(range(table.index_address, &table.index)),
                eh_frame_hdr: Some(Arc::clone(&table.index)),
                ..ExplicitModuleSectionInfo::default()
            };
            let base = bias.wrapping_add(table.base);
            unwinder.add_module(Module::new(String::new(), begin..end, base, sections));
            spans.push(Span {
                begin,
                end,
                bias,
                table,
            });
        }
        spans.sort_by_key(|span| span.begin);
        Self { spans, unwinder }
    }

    /// Whether there is unwind information for the code at `address`.
    pub(super) fn covers(&self, address: u64) -> bool {
        let after = self.spans.partition_point(|span| span.begin <= address);
        after
            .checked_sub(1)
            .and_then(|index| self.spans.get(index))
            .filter(|span| address < span.end)
            .is_some_and(|span| span.table.covers(address.wrapping_sub(span.bias)))
    }

    /// Unwinds the copied stack of a program of the host, from the registers RIP, RSP and RBP on. `code_before` reads
    /// the 8 bytes of the program's code that end right before an address. Passes each frame to `push`, innermost
    /// first, which returns whether there was room for it. A frame is an address inside the instruction that is being
    /// executed.
    pub fn unwind_copied(
        &self,
        [ip, sp, bp]: [u64; 3],
        copy: StackCopy<'_>,
        code_before: impl FnMut(u64) -> Option<[u8; 8]>,
        cache: &mut UnwindCache,
        push: impl FnMut(u64) -> bool,
    ) -> StackEnd {
        let start = UserRegisters {
            ip,
            sp,
            bp,
            is_64_bit: true,
        };
        let mut memory = CopiedMemory {
            copy,
            code_before,
            has_left_copy: false,
        };
        match self.walk(&start, cache, &mut memory, push) {
            StackEnd::Broken if memory.has_left_copy => StackEnd::Truncated,
            end => end,
        }
    }

    /// Unwinds the stack from `start` and passes each frame to `push`, which returns whether there was room for it.
    pub(super) fn walk(
        &self,
        start: &UserRegisters,
        cache: &mut UnwindCache,
        memory: &mut impl StackMemory,
        mut push: impl FnMut(u64) -> bool,
    ) -> StackEnd {
        if !push(start.ip) {
            return StackEnd::Truncated;
        }
        let mut reads = MAX_READS;
        let mut signals = 0;
        let mut frame = Caller {
            ip: start.ip,
            sp: start.sp,
            bp: start.bp,
        };
        // Whether the instruction at `frame.ip` was about to be executed; otherwise `frame.ip` is a return address.
        let mut is_exact = true;
        let mut is_signal = false;
        // Whether the previous frame was found by its frame pointer.
        let mut has_frames = false;
        loop {
            let inside = frame.ip - u64::from(!is_exact);
            let is_covered = self.covers(inside);
            let caller = if is_signal {
                interrupted(frame.sp, memory).ok_or(StackEnd::Broken)
            } else if is_covered {
                self.step(&frame, is_exact, cache, &mut reads, memory)
            } else {
                frame_pointer::step(frame.sp, frame.bp, has_frames, memory)
            };
            has_frames = !is_signal && !is_covered;
            let caller = match caller {
                Ok(caller) => caller,
                Err(end) => return end,
            };
            // Code that a signal interrupted may use another stack, and may be at any instruction.
            is_exact = is_signal;
            is_signal = false;
            if !is_exact && !follows_call(memory, caller.ip) {
                is_exact = true;
                is_signal = returns_from_signal(memory, caller.ip);
                signals += 1;
                if !is_signal || signals > MAX_SIGNALS {
                    return StackEnd::Broken;
                }
            }
            let goes_up = caller.sp > frame.sp || is_exact && !is_signal;
            if !memory.may_use(caller.ip) || caller.ip == 0 || !goes_up {
                return StackEnd::Broken;
            }
            if !push(caller.ip - u64::from(!is_exact)) {
                return StackEnd::Truncated;
            }
            frame = caller;
        }
    }

    /// The caller of `frame` by unwind information. `is_exact` says whether the instruction at its program counter was
    /// about to be executed. `reads` is the number of words that may still be read.
    ///
    /// # Errors
    /// The kind of the stack's end, if the stack ends here.
    pub(super) fn step(
        &self,
        frame: &Caller,
        is_exact: bool,
        cache: &mut UnwindCache,
        reads: &mut u32,
        memory: &mut impl StackMemory,
    ) -> Result<Caller, StackEnd> {
        if frame.sp < LOWEST_STACK || !memory.may_use(frame.sp) {
            return Err(StackEnd::Broken);
        }
        let address = if is_exact {
            FrameAddress::from_instruction_pointer(frame.ip)
        } else {
            FrameAddress::from_return_address(frame.ip).ok_or(StackEnd::Broken)?
        };
        // Without a rule, framehop uses the frame pointer, and takes 0 as the end of the stack. It also subtracts 8
        // from a frame's address without a check (0.16.0, `unwind_frame` in `src/x86_64/dwarf.rs`). With these minimums
        // of both registers, and only rules that `UnwindTable` accepts, no frame's address is below 8.
        let bp = frame.bp.max(NO_FRAME);
        let mut registers = UnwindRegsX86_64::new(frame.ip, frame.sp, bp);
        let mut read = |address| {
            *reads = reads.checked_sub(1).ok_or(())?;
            let word = memory.may_use(address).then(|| memory.word(address));
            word.flatten().ok_or(())
        };
        let cache = cache.cache.get_or_insert_default();
        let back = self
            .unwinder
            .unwind_frame(address, &mut registers, cache, &mut read);
        match back {
            Ok(Some(ip)) => Ok(Caller {
                ip,
                sp: registers.sp(),
                bp: match registers.bp() {
                    NO_FRAME => frame.bp,
                    bp => bp,
                },
            }),
            Ok(None) => Err(StackEnd::Complete),
            Err(_) => Err(StackEnd::Broken),
        }
    }
}

/// The addresses of `bytes`, which begin at `address`.
fn range(address: u64, bytes: &[u8]) -> std::ops::Range<u64> {
    address..address.saturating_add(bytes.len() as u64)
}

/// The code that a signal interrupted. The handler has returned, and the stack pointer is `sp`.
fn interrupted(sp: u64, memory: &mut impl StackMemory) -> Option<Caller> {
    let mut word = |offset: u64| memory.word(sp.checked_add(offset)?);
    Some(Caller {
        ip: word(saved::IP)?,
        sp: word(saved::SP)?,
        bp: word(saved::BP)?,
    })
}

/// Whether `address` is the return address of a signal handler.
fn returns_from_signal(memory: &mut impl StackMemory, address: u64) -> bool {
    address
        .checked_add(SIGNAL_RETURN_LENGTH)
        .and_then(|end| memory.code_before(end))
        == Some(SIGNAL_RETURN)
}
