//! Unwinds user stacks by the unwind information of programs and libraries, and by frame pointers in code without it.
//!
//! Where there is unwind information, nothing else is used: a rule that can't be evaluated ends the stack. A stack is
//! whole only if its end is proven: by a rule, by the code of a thread's, a context's or a program's start, or by a
//! return address of 0 to which rules alone have led. After a frame pointer, no return addresses may follow it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvmprof_recording::StackEnd;

use super::calls::{self, ENDBR64, code_from, follows_call};
use super::language::{BareFrame, CalledFrame, Executed};
use super::row_rules::{Ended, RowCache};
use super::signals::{interrupted, returns_from_signal};
use super::stack_memory::{CopiedMemory, StackCopy, StackMemory};
use super::user_registers::{FrameRegisters, number};
use super::{UnwindTable, UserRegisters, frame_pointer};

/// Maximum number of words that are read for one stack.
pub(super) const MAX_READS: u32 = 16 << 10;
/// Maximum number of signal handlers on one stack, and of functions on it that run on another stack.
const MAX_SIGNALS: u32 = 8;
const MAX_SWITCHES: u32 = 8;
/// Stack pointers below this address are invalid, because the first page can't be mapped (`mmap_min_addr`).
const LOWEST_STACK: u64 = 4096;
/// The instruction SYSCALL.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The first instruction of glibc's `__start_context`, to which a context's function returns: `mov %rbx,%rsp`. `pop
/// %rdi` or `mov (%rsp),%rdi` follows (`sysdeps/unix/sysv/linux/x86_64/__start_context.S`). It isn't called.
const CONTEXT_START: [u8; 3] = [0x48, 0x89, 0xdc];
/// The instruction that programs begin with, XOR %ebp,%ebp, and the prefix for all of RBP. ENDBR64 may precede it.
const CLEARS_BP: [u8; 2] = [0x31, 0xed];
const WIDE: u8 = 0x48;

/// The number of the next unwinder, from 1.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Unwinds the stacks of one address space.
pub struct UserUnwinder {
    /// Sorted by address.
    spans: Vec<Span>,
    /// Distinguishes it from all other ones.
    number: u64,
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
    cache: Option<Box<RowCache>>,
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
        let mut spans: Vec<_> = mappings
            .into_iter()
            .filter_map(|(begin, end, offset, table)| {
                Some(Span {
                    begin,
                    end,
                    bias: table.bias(begin, offset)?,
                    table,
                })
            })
            .collect();
        spans.sort_by_key(|span| span.begin);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { spans, number }
    }

    /// The mapping that `address` is in.
    fn span(&self, address: u64) -> Option<&Span> {
        let after = self.spans.partition_point(|span| span.begin <= address);
        let span = self.spans.get(after.checked_sub(1)?)?;
        (address < span.end).then_some(span)
    }

    /// Whether there is unwind information for the code at `address`.
    pub(super) fn covers(&self, address: u64) -> bool {
        self.span(address)
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
        mut push: impl FnMut(u64) -> bool,
    ) -> StackEnd {
        let start = UserRegisters {
            at: FrameRegisters::new(ip, sp, Some(bp)),
            is_exact: true,
            is_64_bit: true,
        };
        let mut memory = CopiedMemory {
            copy,
            code_before,
            has_left_copy: false,
        };
        match self.walk(&start, cache, &mut memory, |address, _| push(address)) {
            StackEnd::Broken if memory.has_left_copy => StackEnd::Truncated,
            end => end,
        }
    }

    /// Unwinds the stack from `start` and passes each frame and its registers to `push`, which returns whether there was room for it.
    pub(super) fn walk(
        &self,
        start: &UserRegisters,
        cache: &mut UnwindCache,
        memory: &mut impl StackMemory,
        mut push: impl FnMut(u64, &FrameRegisters) -> bool,
    ) -> StackEnd {
        let mut walk = Walk {
            frame: start.at,
            is_exact: start.is_exact,
            is_signal: false,
            has_frames: false,
            signals: 0,
            switches: 0,
            is_covered: false,
            executed: None,
            link: Link::Any,
            is_cut: false,
            reads: MAX_READS,
        };
        loop {
            let has_room = push(walk.inside(), &walk.frame) && {
                let executed = self.executed(&mut walk, memory);
                let mut words = executed.words().iter();
                words.all(|word| push(*word, &walk.frame))
            };
            if !has_room {
                return StackEnd::Truncated;
            }
            if let Err(end) = self.advance(&mut walk, cache, memory) {
                return match end {
                    StackEnd::Broken if self.is_outermost(&walk, memory) => walk.whole(),
                    StackEnd::Complete => walk.whole(),
                    end => end,
                };
            }
        }
    }

    /// The functions of a language that the walk's frame executes, if a runtime knows that. Notes what kind of frame it is.
    fn executed(&self, walk: &mut Walk, memory: &mut impl StackMemory) -> CalledFrame {
        let none = CalledFrame::default();
        let inside = walk.inside();
        (walk.is_covered, walk.link) = (self.covers(inside), Link::Any);
        if walk.is_signal || walk.is_covered {
            return none;
        }
        let span = self.span(inside);
        let own = |span: &Span| span.table.is_in_stretch(inside.wrapping_sub(span.bias));
        if span.is_some_and(|span| !own(span)) {
            return none;
        }
        let Some(bp) = walk.frame.bp() else {
            return none;
        };
        let executed = memory.executed(BareFrame {
            ip: walk.frame.ip,
            is_exact: walk.is_exact,
            sp: walk.frame.sp,
            bp,
            rbx: walk.frame.get(number::RBX),
            r13: walk.frame.get(number::R13),
            is_generated: span.is_none(),
        });
        match executed {
            Executed::Called(called) => {
                walk.link = Link::Known(called.caller);
                walk.is_cut |= called.is_cut;
                return called;
            }
            Executed::Lost => {
                walk.link = Link::Missing;
                return none;
            }
            _ => {}
        }
        if executed == Executed::Unknown
            || walk.is_exact && calls::without_frame(&walk.frame, memory).is_some()
        {
            // The frame pointer is that of the caller, which comes next.
            return none;
        }
        if executed == Executed::Unread {
            walk.is_cut = true;
        } else {
            walk.link = Link::Pointer;
        }
        // Code without a frame of its own has the frame of its caller.
        let is_new = walk.executed.replace(bp) != Some(bp);
        let mut called = none;
        if let Executed::Function(word) = executed
            && is_new
        {
            called.push(word);
        }
        called
    }

    /// Continues with the caller of the walk's frame. The walk is unchanged if there is none.
    fn advance(
        &self,
        walk: &mut Walk,
        cache: &mut UnwindCache,
        memory: &mut impl StackMemory,
    ) -> Result<(), StackEnd> {
        let frame = walk.frame;
        let is_covered = walk.is_covered;
        let mut caller = if walk.is_signal {
            interrupted(frame.sp, memory).ok_or(StackEnd::Broken)?
        } else if frame.sp == 0 && !is_covered {
            return Err(StackEnd::Broken);
        } else if is_covered {
            self.step(&frame, walk.is_exact, cache, &mut walk.reads, memory)?
        } else {
            self.by_frame_pointer(walk, memory)?
        };
        // A return address is right below the caller's stack.
        let place = caller.sp.wrapping_sub(8);
        if let Some(back) = memory
            .true_return(caller.ip, place)
            .filter(|_| !walk.is_signal)
        {
            caller.ip = back;
        }
        if is_covered && self.is_in_outermost(caller.ip) {
            return Err(StackEnd::Complete);
        }
        // Code that a signal interrupted may use another stack, and may be at any instruction.
        let is_exact = walk.is_signal;
        // A runtime may have its frames return to where nothing was called.
        let is_called = is_exact || walk.link.is_runtimes() || follows_call(memory, caller.ip);
        let is_signal = !is_called && returns_from_signal(memory, caller.ip);
        let (signals, switches) = (
            walk.signals + u32::from(is_signal),
            walk.switches + u32::from(is_covered && caller.sp <= frame.sp),
        );
        let is_sound = (is_called || is_signal)
            && signals <= MAX_SIGNALS
            && switches <= MAX_SWITCHES
            && (is_exact || is_covered || caller.sp > frame.sp)
            && (caller.ip, caller.sp) != (frame.ip, frame.sp);
        if caller.ip == 0 || !memory.may_use(caller.ip) || !is_sound {
            return Err(match self.is_context_start(caller.ip, memory) {
                true if !is_exact => StackEnd::Complete,
                _ => StackEnd::Broken,
            });
        }
        *walk = Walk {
            frame: caller,
            is_exact: is_exact || is_signal,
            is_signal,
            has_frames: !walk.is_signal && !is_covered,
            signals,
            switches,
            ..*walk
        };
        Ok(())
    }

    /// The caller of the walk's frame, whose code has no unwind information.
    fn by_frame_pointer(
        &self,
        walk: &mut Walk,
        memory: &mut impl StackMemory,
    ) -> Result<FrameRegisters, StackEnd> {
        let (frame, is_exact) = (walk.frame, walk.is_exact);
        match walk.link {
            Link::Any => {}
            Link::Pointer => {
                let bp = frame.bp().ok_or(StackEnd::Broken)?;
                let found = frame_pointer::linkage(frame.sp, bp, memory).ok_or(StackEnd::Broken)?;
                let caller = Some(found.caller);
                return Ok(FrameRegisters::new(found.back, found.sp, caller));
            }
            Link::Known([ip, sp, bp]) => return Ok(FrameRegisters::new(ip, sp, Some(bp))),
            Link::Missing => return Err(StackEnd::Broken),
        }
        let reads = &mut walk.reads;
        match frame_pointer::step(&frame, is_exact, walk.has_frames, reads, memory) {
            Err(StackEnd::Broken) => self
                .start_above(&frame, reads, memory)
                .ok_or(StackEnd::Broken),
            other => other,
        }
    }

    /// Whether `address` is in a function that is the outermost one of its stack by its file. It may have called nothing: goroutines return there.
    fn is_in_outermost(&self, address: u64) -> bool {
        let inside = address.wrapping_sub(1);
        self.span(inside)
            .is_some_and(|span| span.table.is_outermost(inside.wrapping_sub(span.bias)))
    }

    /// Whether a walk that can't go on has come to the outermost function.
    fn is_outermost(&self, walk: &Walk, memory: &mut impl StackMemory) -> bool {
        !walk.is_exact && self.is_start(walk.frame.ip, memory)
    }

    /// The outermost function as the caller of `frame`, whose code has neither unwind information nor a frame pointer:
    /// the next return address on the stack is there. musl is such code.
    fn start_above(
        &self,
        frame: &FrameRegisters,
        reads: &mut u32,
        memory: &mut impl StackMemory,
    ) -> Option<FrameRegisters> {
        let places = frame.sp..frame.sp.saturating_add(frame_pointer::ABOVE);
        let (back, sp) = calls::first_return_address(places, reads, memory)?;
        let is_start = self.is_start(back, memory);
        is_start.then(|| FrameRegisters::new(back, sp, None).assumed())
    }

    /// Whether the outermost function of a stack continues at `back`, by its code: that of a program's start, which
    /// begins by clearing RBP, or that behind the call of a thread's function.
    fn is_start(&self, back: u64, memory: &mut impl StackMemory) -> bool {
        if code_from(memory, back) == Some(frame_pointer::THREAD_EXIT) {
            return true;
        }
        let inside = back.wrapping_sub(1);
        let start = self.span(inside).and_then(|span| {
            let start = span.table.start_before(back.wrapping_sub(span.bias))?;
            code_from(memory, start.wrapping_add(span.bias))
        });
        let clears_bp = start.is_some_and(|code| {
            let code = code.strip_prefix(&ENDBR64).unwrap_or(&code);
            code.strip_prefix(&[WIDE])
                .unwrap_or(code)
                .starts_with(&CLEARS_BP)
        });
        clears_bp && !self.covers(inside)
    }

    /// Whether `address` is that of `__start_context`.
    fn is_context_start(&self, address: u64, memory: &mut impl StackMemory) -> bool {
        let begins = self
            .span(address)
            .is_some_and(|span| span.table.begins_at(address.wrapping_sub(span.bias)));
        begins
            && code_from(memory, address).is_some_and(|code| {
                code.starts_with(&CONTEXT_START)
                    && matches!(code[3..], [0x5f, ..] | [0x48, 0x8b, 0x3c, 0x24, _])
            })
    }

    /// The caller of `frame` by unwind information. `is_exact` says whether the instruction at its program counter was
    /// about to be executed. `reads` is the number of words that may still be read.
    ///
    /// # Errors
    /// The kind of the stack's end, if the stack ends here.
    pub(super) fn step(
        &self,
        frame: &FrameRegisters,
        is_exact: bool,
        cache: &mut UnwindCache,
        reads: &mut u32,
        memory: &mut impl StackMemory,
    ) -> Result<FrameRegisters, StackEnd> {
        let mut read = |address| {
            *reads = reads.checked_sub(1)?;
            memory.may_use(address).then(|| memory.word(address))?
        };
        let inside = frame.ip.wrapping_sub(u64::from(!is_exact));
        let cache = cache
            .cache
            .get_or_insert_with(|| Box::new(RowCache::new(self.number)));
        cache.known.belong_to(self.number);
        let found = match cache.known.row(inside) {
            Some(row) => row.caller(frame, &mut read),
            None => self.span(inside).and_then(|span| {
                let own = inside.wrapping_sub(span.bias);
                let (context, known) = (&mut cache.context, &mut cache.known);
                span.table
                    .caller(own, inside, frame, context, known, &mut read)
            }),
        };
        match found {
            Some(Err(Ended::Outermost)) => Err(StackEnd::Complete),
            // Rules alone have led to the word. Another stack may follow this one.
            Some(Err(Ended::NoAddress(_))) if !frame.is_assumed => Err(StackEnd::Complete),
            Some(Err(Ended::NoAddress(sp))) => Err(frame_pointer::end_at(sp, reads, memory)),
            Some(Ok(caller)) if caller.sp >= LOWEST_STACK && memory.may_use(caller.sp) => {
                Ok(caller)
            }
            _ => Err(StackEnd::Broken),
        }
    }
}

/// How the caller of a frame without unwind information is found.
#[derive(Clone, Copy)]
enum Link {
    /// As that of any code.
    Any,
    /// By the frame pointer, which the frame of a language's runtime has.
    Pointer,
    /// The runtime knows its RIP, RSP and RBP.
    Known([u64; 3]),
    /// The runtime doesn't know it.
    Missing,
}

impl Link {
    /// Whether the frame is a runtime's, and its caller is known.
    fn is_runtimes(self) -> bool {
        matches!(self, Self::Pointer | Self::Known(_))
    }
}

/// The state of a walk.
struct Walk {
    frame: FrameRegisters,
    /// Whether the instruction at `frame.ip` was about to be executed; otherwise `frame.ip` is a return address.
    is_exact: bool,
    /// Whether the frame is the code to which a signal handler returns.
    is_signal: bool,
    /// Whether the previous frame was found by its frame pointer.
    has_frames: bool,
    signals: u32,
    /// The number of times that the stack continued at a lower address.
    switches: u32,
    /// Whether there is unwind information for the frame's code.
    is_covered: bool,
    /// The frame pointer of the last frame that a language's runtime knew.
    executed: Option<u64>,
    link: Link,
    /// Whether a function of a language is missing.
    is_cut: bool,
    /// The number of words that may still be read.
    reads: u32,
}

impl Walk {
    /// An address inside the frame's current instruction.
    fn inside(&self) -> u64 {
        self.frame.ip.wrapping_sub(u64::from(!self.is_exact))
    }

    /// The end of a stack that was walked to its outermost function.
    fn whole(&self) -> StackEnd {
        match self.is_cut {
            true => StackEnd::Broken,
            false => StackEnd::Complete,
        }
    }
}

/// Whether the instruction before `address` is SYSCALL.
pub(super) fn follows_system_call(memory: &mut impl StackMemory, address: u64) -> bool {
    let code = memory.code_before(address);
    code.is_some_and(|code| code.ends_with(&SYSCALL))
}
