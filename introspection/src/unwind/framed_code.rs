//! How to find the caller of code that the kernel has made of BPF programs: by its frame pointer.
//!
//! Such code pushes RBP and makes it the frame pointer where it begins, changes it nowhere else, and returns behind a LEAVE
//! (`emit_prologue`, `do_jit` and `__arch_prepare_bpf_trampoline`, `arch/x86/net/bpf_jit_comp.c`).

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

use super::orc::{Base, Kind, OrcEntry};

/// Maximum number of instructions before RBP is pushed: NOPs, and the count of calls.
const MAX_BEFORE: usize = 8;
/// Instructions at the end of a function.
const LEAVE: u8 = 0xc9;
const RETURN: u8 = 0xc3;
/// `add $8, %rsp`: a trampoline that has called the traced function doesn't return to it.
const SKIP_RETURN: [u8; 4] = [0x48, 0x83, 0xc4, 0x08];

/// Code with a frame pointer.
#[derive(Debug)]
pub struct FramedCode {
    code: Vec<u8>,
    start: u64,
    /// The offset of the instruction that pushes RBP.
    pushes: usize,
    /// The offset of the one that makes it the frame pointer.
    frames: usize,
    /// The offset from which on it is that.
    framed: usize,
}

impl FramedCode {
    /// The `code` at address `start`, where a function begins. `None` if that doesn't make a frame pointer first.
    pub fn find(code: Vec<u8>, start: u64) -> Option<Self> {
        let mut decoder = Decoder::with_ip(64, &code, start, DecoderOptions::NONE);
        let mut pushes = None;
        for _ in 0..=MAX_BEFORE {
            let before = decoder.position();
            if !decoder.can_decode() {
                return None;
            }
            let instruction = decoder.decode();
            if is_push_of_bp(&instruction) {
                pushes = Some(before);
                break;
            }
            // What is called there is what traces the program, and returns.
            let flow = instruction.flow_control();
            let goes_on = matches!(flow, FlowControl::Next | FlowControl::Call);
            if !goes_on || changes_stack(&instruction) {
                return None;
            }
        }
        let frames = decoder.position();
        let makes_frame = decoder.can_decode() && is_frame(&decoder.decode());
        let (pushes, framed) = (pushes?, decoder.position());
        makes_frame.then_some(Self {
            code,
            start,
            pushes,
            frames,
            framed,
        })
    }

    /// The rule for `address`, an instruction that was about to be executed if it `is_exact`, otherwise what follows a call.
    pub fn entry(&self, address: u64, is_exact: bool) -> Option<OrcEntry> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        if offset <= self.pushes {
            return Some(WITHOUT_FRAME);
        }
        if offset == self.frames {
            return Some(PUSHED);
        }
        let is_inside = offset >= self.framed && offset < self.code.len() + usize::from(!is_exact);
        is_inside.then(|| match is_exact && self.has_left(offset) {
            true => WITHOUT_FRAME,
            false => WITH_FRAME,
        })
    }

    /// Whether the instruction at `offset` comes behind a LEAVE.
    fn has_left(&self, offset: usize) -> bool {
        let (before, rest) = self.code.split_at(offset.min(self.code.len()));
        let before = before.strip_suffix(&SKIP_RETURN).unwrap_or(before);
        // Other instructions end with this byte, too, but none in front of these.
        let is_behind_leave = before.last() == Some(&LEAVE);
        let at = self.start.wrapping_add(offset as u64);
        match rest.first() {
            Some(&RETURN) => true,
            _ if rest.starts_with(&SKIP_RETURN) => is_behind_leave,
            // With a return thunk it jumps.
            Some(_) => {
                let mut decoder = Decoder::with_ip(64, rest, at, DecoderOptions::NONE);
                let instruction = decoder.decode();
                let is_jump = instruction.flow_control() == FlowControl::UnconditionalBranch;
                is_jump && is_behind_leave && !self.contains(instruction.near_branch_target())
            }
            None => false,
        }
    }

    fn contains(&self, address: u64) -> bool {
        let offset = address.checked_sub(self.start);
        offset.is_some_and(|offset| offset < self.code.len() as u64)
    }

    /// The approximate memory use, in bytes.
    pub fn footprint(&self) -> usize {
        size_of::<Self>() + self.code.len()
    }
}

/// The return address is on top of the stack.
const WITHOUT_FRAME: OrcEntry = OrcEntry {
    kind: Kind::Call,
    sp: Base::Sp,
    sp_offset: 8,
    bp: Base::Undefined,
    bp_offset: 0,
};
/// RBP is above it.
const PUSHED: OrcEntry = OrcEntry {
    kind: Kind::Call,
    sp: Base::Sp,
    sp_offset: 16,
    bp: Base::CallerSp,
    bp_offset: -16,
};
/// It is, and RBP points to it.
const WITH_FRAME: OrcEntry = OrcEntry {
    sp: Base::Bp,
    ..PUSHED
};

fn is_push_of_bp(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Push && instruction.op0_register() == Register::RBP
}

/// Whether it is `mov %rsp, %rbp`.
fn is_frame(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register() == Register::RBP
        && instruction.op1_register() == Register::RSP
}

/// Whether the stack or the frame pointer isn't as before, once the next instruction is executed.
fn changes_stack(instruction: &Instruction) -> bool {
    let is_call = instruction.flow_control() == FlowControl::Call;
    let register = instruction.op0_register().full_register();
    !is_call && instruction.is_stack_instruction()
        || matches!(register, Register::RSP | Register::RBP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0xffff_ffff_c000_1234;

    /// `endbr64; nopl; xor %eax,%eax; push %rbp; mov %rsp,%rbp; sub $0x10,%rsp; push %rbx`.
    const PROLOGUE: [u8; 21] = [
        0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0, 0x31, 0xc0, 0x55, 0x48, 0x89, 0xe5, 0x48,
        0x83, 0xec, 0x10, 0x53, 0x90,
    ];

    /// The code of the prologue and these bytes, and their offset.
    fn with(rest: &[u8]) -> (FramedCode, u64) {
        let code = [&PROLOGUE, rest].concat();
        (FramedCode::find(code, START).unwrap(), 21)
    }

    #[test]
    fn the_frame_pointer_leads_to_the_caller_from_where_it_is_made() {
        // `xor %ecx,%ecx; pop %rbx; leave; ret`.
        let (code, rest) = with(&[0x31, 0xc9, 0x5b, 0xc9, 0xc3]);
        let at = |offset| code.entry(START + offset, true);
        for offset in [0, 4, 9, 11] {
            assert_eq!(at(offset), Some(WITHOUT_FRAME), "{offset}");
        }
        assert_eq!(at(12), Some(PUSHED));
        for offset in [15, 19, rest, rest + 2, rest + 3] {
            assert_eq!(at(offset), Some(WITH_FRAME), "{offset}");
        }
        assert_eq!(at(rest + 4), Some(WITHOUT_FRAME));
        // No instructions.
        assert_eq!([at(13), at(rest + 5)], [None; 2]);
        assert_eq!(code.entry(START - 1, true), None);
        // A call at the end doesn't return, but was made.
        assert_eq!(code.entry(START + rest + 5, false), Some(WITH_FRAME));
        assert_eq!(code.entry(START + rest + 6, false), None);
        // Behind a call nothing has left the frame, whatever bytes are there.
        assert_eq!(code.entry(START + rest + 4, false), Some(WITH_FRAME));
    }

    #[test]
    fn code_returns_by_a_jump_or_past_the_traced_function() {
        // `leave; jmp` to the return thunk.
        let (code, rest) = with(&[0xc9, 0xe9, 0, 0, 0, 0x10, 0xcc]);
        assert_eq!(code.entry(START + rest + 1, true), Some(WITHOUT_FRAME));
        // `xor %ecx,%ecx; jmp` within the program.
        let (code, rest) = with(&[0x31, 0xc9, 0xe9, 0, 0, 0, 0, 0xc9, 0xc3]);
        assert_eq!(code.entry(START + rest + 2, true), Some(WITH_FRAME));
        // `leave; add $8,%rsp; ret`, and the same with a jump.
        let (code, rest) = with(&[0xc9, 0x48, 0x83, 0xc4, 8, 0xc3]);
        for offset in [1, 5] {
            assert_eq!(code.entry(START + rest + offset, true), Some(WITHOUT_FRAME));
        }
        let (code, rest) = with(&[0xc9, 0x48, 0x83, 0xc4, 8, 0xe9, 0, 0, 0, 0x10]);
        assert_eq!(code.entry(START + rest + 5, true), Some(WITHOUT_FRAME));
        // `add $8,%rsp; jmp` to another program, whose frame is the same.
        let (code, rest) = with(&[0x90, 0x48, 0x83, 0xc4, 8, 0xe9, 0, 0, 0, 0x10]);
        for offset in [1, 5] {
            assert_eq!(code.entry(START + rest + offset, true), Some(WITH_FRAME));
        }
    }

    #[test]
    fn other_code_has_no_rule() {
        for code in [
            &[][..],
            &[0x55],
            &[0x55, 0x48, 0x89],
            // `push %rbp; sub $8,%rsp`, `push %rbx; push %rbp; mov %rsp,%rbp`.
            &[0x55, 0x48, 0x83, 0xec, 8, 0xc3],
            &[0x53, 0x55, 0x48, 0x89, 0xe5, 0xc3],
            // `mov %rsi,%rsp; mov %rdx,%rbp`: a program that catches exceptions.
            &[0x48, 0x89, 0xf4, 0x48, 0x89, 0xd5, 0x55, 0x48, 0x89, 0xe5],
            // A dispatcher: `cmp %rdi,%rdx; jmp`.
            &[0x48, 0x39, 0xfa, 0xe9, 0, 0, 0, 0, 0x55, 0x48, 0x89, 0xe5],
            &[
                0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x55, 0x48, 0x89, 0xe5,
            ],
        ] {
            assert!(
                FramedCode::find(code.to_vec(), START).is_none(),
                "{code:x?}"
            );
        }
        // What traces the program was there when it was read: `call`.
        let traced = [0xe8, 0, 0, 0, 0x10, 0x55, 0x48, 0x89, 0xe5, 0xc9, 0xc3];
        let traced = FramedCode::find(traced.to_vec(), START).unwrap();
        assert_eq!(traced.entry(START + 5, false), Some(WITHOUT_FRAME));
    }
}
