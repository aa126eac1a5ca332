//! Recognizes return addresses on a stack, and where they are at single instructions.

use std::ops::Range;

use super::stack_memory::StackMemory;
use super::user_registers::FrameRegisters;

/// Maximum number of bytes of a frame that are searched.
const MAX_SEARCHED: u64 = 8 << 10;
/// Number of reads that a read of code counts for, since it needs a walk of page tables.
const CODE_READS: u32 = 8;
/// Maximum length of a function, in bytes.
const MAX_FUNCTION: u64 = 1 << 20;
/// The instruction ENDBR64 (SDM volume 2).
pub const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// A call that ended right before a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// To this address.
    Direct(u64),
    /// To an address in a register or in memory.
    Indirect,
}

/// The call right before `back`; `None` if there is none. Code without frame pointers has other values in RBP, which
/// could lead to any address.
fn call_before(memory: &mut impl StackMemory, back: u64) -> Option<Call> {
    let code = memory.code_before(back)?;
    // CALL rel32 (SDM volume 2, CALL).
    if let [_, _, _, 0xe8, distance @ ..] = code {
        let distance = i32::from_le_bytes(distance);
        return Some(Call::Direct(back.wrapping_add_signed(distance.into())));
    }
    // CALL r/m64 is FF /2, with any possible length of its operand.
    let is_call = [2, 3, 4, 6, 7].into_iter().any(|length| {
        let [opcode, operand] = [code[8 - length], code[9 - length]];
        opcode == 0xff
            && operand >> 3 & 7 == 2
            && operand_length(operand, code[10 - length.max(3)]) == length
    });
    is_call.then_some(Call::Indirect)
}

/// True if a call instruction ends right before `back`.
pub fn follows_call(memory: &mut impl StackMemory, back: u64) -> bool {
    call_before(memory, back).is_some()
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

/// The 8 bytes of code from `address` on.
pub fn code_from(memory: &mut impl StackMemory, address: u64) -> Option<[u8; 8]> {
    memory.code_before(address.checked_add(8)?)
}

/// Whether the code at `address` jumps on, as entries of a procedure linkage table do.
fn is_jump(memory: &mut impl StackMemory, address: u64) -> bool {
    let code = code_from(memory, address);
    code.is_none_or(|code| match code {
        [0xe9 | 0xeb, ..] | [0xff, 0x25, ..] | [0xf2, 0xff, 0x25, ..] => true,
        [a, b, c, d, 0xff | 0xf2 | 0xe9, ..] => [a, b, c, d] == ENDBR64,
        _ => false,
    })
}

/// Whether JMP rel32 at `address` leads to the first entry of a procedure linkage table, which begins with PUSH
/// disp(%rip).
fn jumps_to_table(memory: &mut impl StackMemory, address: u64) -> bool {
    let Some([0xe9, a, b, c, d, ..]) = code_from(memory, address) else {
        return false;
    };
    let distance = i32::from_le_bytes([a, b, c, d]);
    let first = (address.wrapping_add(5)).wrapping_add_signed(distance.into());
    code_from(memory, first).is_some_and(|code| code[..2] == [0xff, 0x35])
}

/// The caller of the function that is about to execute an instruction, if that instruction says where the return address
/// is: at a function's start and end, and in procedure linkage tables. All such instructions are outside of frames.
pub fn without_frame(
    frame: &FrameRegisters,
    memory: &mut impl StackMemory,
) -> Option<FrameRegisters> {
    let next = code_from(memory, frame.ip)?;
    let before = memory.code_before(frame.ip)?;
    // The number of words between the stack pointer and the return address, and whether the first one is RBP.
    let (words, has_bp) = match next {
        // RET. PUSH %rbp; MOV %rsp,%rbp, which has two encodings.
        [0xc3, ..] | [0x55, 0x48, 0x89, 0xe5, ..] | [0x55, 0x48, 0x8b, 0xec, ..] => (0, false),
        [a, b, c, d, 0x55, 0x48, 0x89, 0xe5] if [a, b, c, d] == ENDBR64 => (0, false),
        [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..] if before[7] == 0x55 => (1, true),
        // POP %rbp; RET.
        [0x5d, 0xc3, ..] => (1, true),
        // The first entry of a table pushes a word and jumps: PUSH disp(%rip); JMP *disp(%rip).
        [0xff, 0x35, .., 0xff, _] => (1, false),
        [0xff, 0x25, ..] if before[2..4] == [0xff, 0x35] => (2, false),
        // The other ones jump, or push their number and jump: JMP *disp(%rip); PUSH imm32; JMP.
        [0xff, 0x25, ..] | [0xf2, 0xff, 0x25, ..] => (0, false),
        [a, b, c, d, 0xff, 0x25, ..] | [a, b, c, d, 0xf2, 0xff, 0x25, _]
            if [a, b, c, d] == ENDBR64 =>
        {
            (0, false)
        }
        [0x68, _, _, _, _, 0xe9, ..] if jumps_to_table(memory, frame.ip.checked_add(5)?) => {
            (0, false)
        }
        [0xe9, ..] if before[3] == 0x68 && jumps_to_table(memory, frame.ip) => (1, false),
        _ => return None,
    };
    let at = frame.sp.checked_add(8 * words)?;
    memory.may_use(at).then_some(())?;
    let back = memory.word(at)?;
    if !memory.may_use(back) || !follows_call(memory, back) {
        return None;
    }
    let mut others = frame.preserved();
    if has_bp {
        let place = others.get_mut(usize::from(super::user_registers::number::RBP))?;
        *place = memory.word(frame.sp);
    }
    Some(frame.caller(back, at.checked_add(8)?, others))
}

/// Whether one of the words at `places` may be a return address, or there are too many of them. May read `reads` words.
pub fn has_return_addresses(
    places: Range<u64>,
    reads: &mut u32,
    memory: &mut impl StackMemory,
) -> bool {
    Search { reads }.any(places, memory, |_, _, _| true)
}

/// The first word at `places` that may be a return address, and the address behind it. May read `reads` words.
pub fn first_return_address(
    places: Range<u64>,
    reads: &mut u32,
    memory: &mut impl StackMemory,
) -> Option<(u64, u64)> {
    let mut found = None;
    Search { reads }.any(places, memory, |(place, back), _, _| {
        found = Some((back, place.saturating_add(8)));
        true
    });
    found
}

/// Words of a frame that may be return addresses: those of missing callers, or old ones.
pub struct Candidates<'r> {
    search: Search<'r>,
    /// The program counter of the function.
    ip: u64,
    /// The first instruction of the function that the frame belongs to, if the call to it is known.
    owner: Option<u64>,
}

impl<'r> Candidates<'r> {
    /// The candidates below a frame with the return address `back`, of the function at `ip`.
    pub fn new(ip: u64, back: u64, reads: &'r mut u32, memory: &mut impl StackMemory) -> Self {
        let owner = match call_before(memory, back) {
            Some(Call::Direct(owner)) => Some(owner).filter(|owner| {
                let distance = ip.checked_sub(*owner);
                distance.is_some_and(|distance| distance < MAX_FUNCTION)
            }),
            _ => None,
        };
        Self {
            search: Search { reads },
            ip,
            owner,
        }
    }

    /// Whether no words at `places`, which lie between the function's stack pointer and its frame, are return addresses
    /// of callers that are missing.
    ///
    /// A call of a function that begins between the frame's function and the program counter shows that the frame is
    /// another function's. An indirect call may be one of this function, if there is also a candidate in the frame's
    /// function: the outermost of the missing callers' return addresses.
    pub fn belong_to_no_frame(
        &mut self,
        places: Range<u64>,
        memory: &mut impl StackMemory,
    ) -> bool {
        let (ip, owner) = (self.ip, self.owner);
        let first = owner.unwrap_or(ip.saturating_sub(MAX_FUNCTION));
        let (mut may_be_called, mut is_in_owner) = (false, false);
        let is_unclear = self.search.any(places, memory, |(_, back), call, memory| {
            let is_known = match call {
                Call::Direct(target) if (first..=ip).contains(&target) => {
                    return Some(target) != owner;
                }
                Call::Direct(target) => !is_jump(memory, target),
                Call::Indirect => false,
            };
            may_be_called |= !is_known;
            is_in_owner |= owner.is_none_or(|owner| (owner..=ip).contains(&back));
            may_be_called && is_in_owner
        });
        !is_unclear
    }
}

struct Search<'r> {
    reads: &'r mut u32,
}

impl Search<'_> {
    /// Whether `is` holds for one of the words at `places` that are behind a call, given its place and the word, or
    /// there are too many words. Words that can't be read aren't there.
    fn any<M: StackMemory>(
        &mut self,
        places: Range<u64>,
        memory: &mut M,
        mut is: impl FnMut((u64, u64), Call, &mut M) -> bool,
    ) -> bool {
        let end = places.end;
        if end.saturating_sub(places.start) > MAX_SEARCHED {
            return true;
        }
        // The words of a stack are aligned.
        let start = places.start.saturating_add(7) & !7;
        for place in (start..end).step_by(8) {
            if !self.may_read(1) {
                return true;
            }
            let word = memory.may_use(place).then(|| memory.word(place));
            let Some(word) = word.flatten() else {
                return false;
            };
            // Pointers into the stack, and numbers.
            let is_near = word.wrapping_sub(place) < MAX_FUNCTION || word < 4096;
            if is_near || !memory.may_use(word) {
                continue;
            }
            if !self.may_read(CODE_READS) {
                return true;
            }
            if let Some(call) = call_before(memory, word)
                && is((place, word), call, memory)
            {
                return true;
            }
        }
        false
    }

    fn may_read(&mut self, words: u32) -> bool {
        let left = self.reads.checked_sub(words);
        *self.reads = left.unwrap_or(0);
        left.is_some()
    }
}
