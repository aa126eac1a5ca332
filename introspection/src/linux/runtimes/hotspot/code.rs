//! The code cache: which blob of code an address is in, and where compiled code has its frame.

use std::ops::Range;

use super::super::ProcessMemory;
use super::layout::{Blobs, Heaps, MAX_HEAD};
use crate::bytes::{u8_at, u16_at, u32_at, u64_at};

/// Maximum number of code heaps. JDK 17 to 25 have three, or one.
const MAX_HEAPS: u32 = 8;
/// Bytes of a heap's map of segments that are read at once, and how often that is done for one address.
const CHUNK: usize = 256;
const MAX_CHUNKS: usize = 8;
/// What the map of segments says of a free one (`CodeHeap::free_sentinel`).
const FREE: u8 = 0xff;
/// Bytes of a `CodeHeap` and of other structures that are read when a process has started.
const MAX_STRUCTURE: usize = 512;
/// A segment has at most this number of bytes, as a power of two.
const MAX_SEGMENT: u32 = 20;
/// Maximum number of words of a frame.
const MAX_FRAME: u64 = 1 << 16;
/// How the names of blobs with the code of virtual calls begin (`VtableBlob`).
const VIRTUAL_CALLS: &[u8] = b"vtable c";
/// Bytes of code before and behind a program counter.
const BEFORE: usize = 64;
const BEHIND: usize = 8;

/// A code heap. It stays where it is.
#[derive(Debug)]
pub struct CodeHeap {
    reserved: Range<u64>,
    /// The first segment, and its place in the map.
    low: u64,
    map: u64,
    /// The size of a segment as a power of two.
    segment: u32,
}

impl CodeHeap {
    /// The heaps that the array at `array` has. `None` if they can't be read, as before they are there.
    pub fn all(layout: &Heaps, array: u64, memory: &mut dyn ProcessMemory) -> Option<Vec<Self>> {
        let mut bytes = [0; 4];
        memory.read(array.checked_add(layout.count as u64)?, &mut bytes)?;
        let count = u32::from_le_bytes(bytes);
        (1..=MAX_HEAPS).contains(&count).then_some(())?;
        let elements = memory.word(array.checked_add(layout.elements as u64)?)?;
        let heaps = (0..u64::from(count)).map(|number| {
            let heap = memory.word(elements.checked_add(8 * number)?)?;
            Self::read(layout, heap, memory)
        });
        heaps.collect()
    }

    fn read(layout: &Heaps, heap: u64, memory: &mut dyn ProcessMemory) -> Option<Self> {
        let mut bytes = [0; MAX_STRUCTURE];
        let fields = [
            layout.memory + layout.low,
            layout.memory + layout.reserved[0],
            layout.memory + layout.reserved[1],
            layout.map + layout.low,
        ];
        let end = fields.into_iter().max()?.max(layout.segment) + 8;
        let bytes = bytes.get_mut(..end)?;
        memory.read(heap, bytes)?;
        let [low, begin, end, map] = fields.map(|field| u64_at(bytes, field));
        let segment = u32_at(bytes, layout.segment)?;
        let found = Self {
            reserved: begin?..end?,
            low: low?,
            map: map?,
            segment,
        };
        let fits = found.reserved.contains(&found.low) && found.map != 0 && segment <= MAX_SEGMENT;
        fits.then_some(found)
    }

    /// Whether `address` may have code of this heap.
    pub fn contains(&self, address: u64) -> bool {
        self.reserved.contains(&address)
    }

    /// The block with `address`. `None` if it is free, or the heap's map leads nowhere.
    fn block(&self, address: u64, memory: &mut dyn ProcessMemory) -> Option<u64> {
        let mut index = address.checked_sub(self.low)? >> self.segment;
        let mut chunk = [0; CHUNK];
        for _ in 0..MAX_CHUNKS {
            let first = index.saturating_sub(CHUNK as u64 - 1);
            let length = usize::try_from(index - first).ok()? + 1;
            let bytes = chunk.get_mut(..length)?;
            memory.read(self.map.checked_add(first)?, bytes)?;
            // A segment has its distance from the first one of its block, or from one that is closer to that.
            while let Some(distance) = index.checked_sub(first) {
                let back = u8_at(bytes, usize::try_from(distance).ok()?)?;
                match back {
                    0 => return self.low.checked_add(index << self.segment),
                    FREE => return None,
                    back => index = index.checked_sub(u64::from(back))?,
                }
            }
        }
        None
    }
}

/// What a blob's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A method, by a compiler, or what calls a native one.
    Compiled,
    /// What calls a virtual method: it jumps there, without a frame.
    VirtualCall,
    Other,
}

/// A blob of code.
#[derive(Debug)]
pub struct Blob {
    pub address: u64,
    /// Its head.
    head: [u8; MAX_HEAD],
    pub code: Range<u64>,
    pub kind: Kind,
    /// Bytes of a frame, with the return address and the caller's frame pointer; 0 if there is none.
    pub frame: u64,
    /// The first address with a complete frame.
    complete: u64,
}

impl Blob {
    /// The blob whose code has `address`. `None` if there is none.
    pub fn at(
        layout: &Blobs,
        heaps: &[CodeHeap],
        address: u64,
        memory: &mut dyn ProcessMemory,
    ) -> Option<Self> {
        let heap = heaps.iter().find(|heap| heap.contains(address))?;
        let block = heap.block(address, memory)?;
        let mut head = [0; MAX_HEAD];
        let length = layout.length();
        memory.read(block, head.get_mut(..length)?)?;
        (u8_at(&head, layout.used)? == 1).then_some(())?;
        head.copy_within(layout.block..length, 0);
        let blob = block.checked_add(layout.block as u64)?;
        let [begin, end] = layout.code.map(|place| place.find(blob, &head));
        let code = begin?..end?;
        code.contains(&address).then_some(())?;
        let words = u64::from(u32_at(&head, layout.frame)?);
        let complete = u16_at(&head, layout.complete)?.cast_signed();
        let is_compiled = usize::from(u16_at(&head, layout.head)?) == layout.compiled;
        let kind = match is_compiled {
            true => Kind::Compiled,
            false => Kind::by_name(u64_at(&head, layout.name)?, memory)?,
        };
        Some(Self {
            address: blob,
            head,
            complete: code.start.wrapping_add_signed(complete.into()),
            code,
            kind,
            // -1 stands for code that has none.
            frame: if words < MAX_FRAME { 8 * words } else { 0 },
        })
    }

    /// The bytes of its head.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Where the function that is about to execute the instruction at `ip` has its frame.
    pub fn state(&self, ip: u64, memory: &mut dyn ProcessMemory) -> Option<FrameState> {
        let begin = ip.saturating_sub(BEFORE as u64).max(self.code.start);
        let mut bytes = [0; BEFORE + BEHIND];
        let before = usize::try_from(ip.checked_sub(begin)?).ok()?;
        let bytes = bytes.get_mut(..before + BEHIND)?;
        memory.read(begin, bytes)?;
        let (before, next) = bytes.split_at_checked(before)?;
        Some(match ip < self.complete {
            true => FrameState::at_begin(before, next, self.frame),
            false => FrameState::at_end(before, next, self.frame),
        })
    }
}

impl Kind {
    fn by_name(name: u64, memory: &mut dyn ProcessMemory) -> Option<Self> {
        let mut begin = [0; VIRTUAL_CALLS.len()];
        memory.read(name, &mut begin)?;
        Some(match begin == VIRTUAL_CALLS {
            true => Self::VirtualCall,
            false => Self::Other,
        })
    }
}

/// How much of a compiled function's frame is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameState {
    /// The stack begins with the return address.
    Absent,
    /// It begins with the caller's frame pointer, which the return address follows.
    Pushed,
    /// All of it, but the caller's frame pointer is still in its register.
    Unsaved,
    Complete,
}

/// PUSH %rbp; POP %rbp; MOV %rsp,%rbp.
const PUSH: u8 = 0x55;
const POP: u8 = 0x5d;
const SET: &[u8] = &[0x48, 0x8b, 0xec];
/// SUB imm8,%rsp; SUB imm32,%rsp; ADD.
const SUB: [&[u8]; 2] = [&[0x48, 0x83, 0xec], &[0x48, 0x81, 0xec]];
const ADD: [&[u8]; 2] = [&[0x48, 0x83, 0xc4], &[0x48, 0x81, 0xc4]];
/// MOV %rbp,disp8(%rsp); MOV %rbp,disp32(%rsp).
const SAVE: [&[u8]; 2] = [&[0x48, 0x89, 0x6c, 0x24], &[0x48, 0x89, 0xac, 0x24]];
/// CMP disp8(%r15),%rsp; CMP disp32(%r15),%rsp; JA rel32: whether the thread is to stop, before it returns.
const POLL: [(&[u8], usize); 2] = [(&[0x49, 0x3b, 0x67], 4), (&[0x49, 0x3b, 0xa7], 7)];
const JUMP: &[u8] = &[0x0f, 0x87];
/// RET; RET imm16.
const RETURNS: [u8; 2] = [0xc3, 0xc2];

impl FrameState {
    /// The state before a frame is complete (`MacroAssembler::verified_entry`, `C1_MacroAssembler::build_frame`): RBP is pushed and the rest
    /// is subtracted, or all is subtracted, and RBP is saved in it. `before` is the code up to the program counter.
    fn at_begin(before: &[u8], next: &[u8], frame: u64) -> Self {
        let subtracts = |length: Option<u64>| {
            let mut places = (0..before.len()).filter_map(|at| before.get(at..));
            length.is_some() && places.any(|code| change(code, SUB).map(|(by, _)| by) == length)
        };
        if subtracts(frame.checked_sub(16)) {
            return Self::Complete;
        }
        if subtracts(frame.checked_sub(8)) {
            let saves = SAVE.iter().any(|save| next.starts_with(save));
            return if saves { Self::Unsaved } else { Self::Complete };
        }
        let before = before.strip_suffix(SET).unwrap_or(before);
        match before.last() {
            Some(&PUSH) => Self::Pushed,
            _ => Self::Absent,
        }
    }

    /// The state in code that has its frame, or has removed it again (`MachEpilogNode`, `LIR_Assembler::return_op`).
    fn at_end(before: &[u8], next: &[u8], frame: u64) -> Self {
        let behind = |length: usize| {
            before
                .len()
                .checked_sub(length)
                .map(|at| before.split_at(at))
        };
        let first = next.first();
        if first.is_some_and(|code| RETURNS.contains(code)) {
            return Self::Absent;
        }
        if first == Some(&POP) {
            let rest = frame.checked_sub(16);
            let adds = |length: usize| {
                let last = behind(length).and_then(|(_, last)| change(last, ADD));
                last.is_some_and(|(by, own)| Some(by) == rest && own == length)
            };
            return match rest == Some(0) || adds(4) || adds(7) {
                true => Self::Pushed,
                false => Self::Complete,
            };
        }
        let polls = |(code, length): (&[u8], usize)| {
            let is_next = next.starts_with(code) && before.last() == Some(&POP);
            let is_before = behind(length).is_some_and(|(before, last)| {
                last.starts_with(code) && before.last() == Some(&POP)
            });
            is_next || is_before && next.starts_with(JUMP)
        };
        match POLL.into_iter().any(polls) {
            true => Self::Absent,
            false => Self::Complete,
        }
    }
}

/// By how much the instruction that `code` begins with changes the stack pointer, if it is one of `forms`, and its length.
fn change(code: &[u8], forms: [&[u8]; 2]) -> Option<(u64, usize)> {
    let [short, long] = forms;
    let (by, length) = if code.starts_with(short) {
        (u32::from(u8_at(code, short.len())?), short.len() + 1)
    } else if code.starts_with(long) {
        (u32_at(code, long.len())?, long.len() + 4)
    } else {
        return None;
    };
    Some((by.into(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PUSH %rbp; SUB $0x20,%rsp; NOP; ADD $0x20,%rsp; POP %rbp; CMP 0x28(%r15),%rsp; JA; RET, and the state at each instruction.
    const OF_48_BYTES: [(&[u8], FrameState); 8] = [
        (&[0x55], FrameState::Absent),
        (&[0x48, 0x83, 0xec, 0x20], FrameState::Pushed),
        (&[0x90], FrameState::Complete),
        (&[0x48, 0x83, 0xc4, 0x20], FrameState::Complete),
        (&[0x5d], FrameState::Pushed),
        (&[0x49, 0x3b, 0x67, 0x28], FrameState::Absent),
        (&[0x0f, 0x87, 1, 0, 0, 0], FrameState::Absent),
        (&[0xc3], FrameState::Absent),
    ];

    /// The state at each instruction of `code`, the first `begin` of which begin a function with this frame.
    fn states(code: &[&[u8]], begin: usize, frame: u64) -> Vec<FrameState> {
        let whole = code.concat();
        let mut at = 0;
        let states = code.iter().enumerate().map(|(number, instruction)| {
            let (before, next) = whole.split_at(at);
            at += instruction.len();
            match number < begin {
                true => FrameState::at_begin(before, next, frame),
                false => FrameState::at_end(before, next, frame),
            }
        });
        states.collect()
    }

    #[test]
    fn instructions_show_how_much_of_a_frame_is_there() {
        let code = OF_48_BYTES.map(|(code, _)| code);
        let expected = OF_48_BYTES.map(|(_, state)| state);
        assert_eq!(states(&code, 3, 48), expected);
        // Of another frame, the instructions are any others.
        use FrameState::{Absent, Complete, Pushed, Unsaved};
        let other = states(&code, 3, 64);
        assert_eq!(other[..3], [Absent, Pushed, Absent]);
        assert_eq!(other[4], Complete);
        // SUB $0x118,%rsp; MOV %rbp,0x110(%rsp), and a larger poll.
        let large: [&[u8]; 7] = [
            &[0x48, 0x81, 0xec, 0x18, 1, 0, 0],
            &[0x48, 0x89, 0xac, 0x24, 0x10, 1, 0, 0],
            &[0x90],
            &[0x48, 0x81, 0xc4, 0x10, 1, 0, 0],
            &[0x5d],
            &[0x49, 0x3b, 0xa7, 0x38, 3, 0, 0],
            &[0x0f, 0x87, 1, 0, 0, 0],
        ];
        let expected = [Absent, Unsaved, Complete, Complete, Pushed, Absent, Absent];
        assert_eq!(states(&large, 3, 0x120), expected);
        // With a frame pointer: MOV %rsp,%rbp.
        let framed: [&[u8]; 4] = [&[PUSH], SET, &[0x48, 0x83, 0xec, 0x20], &[0x90]];
        assert_eq!(states(&framed, 4, 48), [Absent, Pushed, Pushed, Complete]);
        // Nothing else on the stack.
        assert_eq!(states(&[&[POP], &[0xc3]], 0, 16), [Pushed, Absent]);
    }
}
