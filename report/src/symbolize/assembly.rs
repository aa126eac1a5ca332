//! Disassembles machine code.

use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, Formatter, Instruction, IntelFormatter, OpKind,
};

use super::Resolved;

/// Maximum length of an instruction, in bytes (Intel SDM, volume 2, 2.3.11).
pub const MAX_INSTRUCTION: usize = 15;
/// Bits of the guest's programs and kernel.
const BITNESS: u32 = 64;

/// Code from an address on, in Intel's syntax.
pub struct Assembly<R> {
    start: u64,
    first: Option<Resolved>,
    resolve: R,
}

impl<R: Fn(u64) -> Option<Resolved>> Assembly<R> {
    /// Code whose first instruction is at `start`. `resolve` returns the function at an address.
    pub fn new(start: u64, resolve: R) -> Self {
        Self {
            start,
            first: resolve(start),
            resolve,
        }
    }

    /// The instructions of `code`, each with its distance from the start in bytes, and their bytes in all: those that begin in the first
    /// `size` bytes, and further ones of the same function if it `continues`.
    pub fn instructions(
        &self,
        code: &[u8],
        size: usize,
        continues: bool,
    ) -> (usize, Vec<(usize, String)>) {
        let mut formatter = IntelFormatter::new();
        let options = formatter.options_mut();
        options.set_hex_prefix("0x");
        options.set_hex_suffix("");
        options.set_uppercase_hex(false);
        options.set_branch_leading_zeros(false);
        options.set_space_after_operand_separator(true);
        let mut decoder = Decoder::with_ip(BITNESS, code, self.start, DecoderOptions::NONE);
        let (mut instruction, mut all) = (Instruction::default(), Vec::new());
        let mut end = 0;
        while decoder.can_decode() {
            let offset = decoder.position();
            if offset >= size && !(continues && self.has(offset)) {
                break;
            }
            decoder.decode_out(&mut instruction);
            // The code that was asked for ends within it.
            if decoder.last_error() == DecoderError::NoMoreBytes {
                break;
            }
            end = decoder.position();
            let mut text = String::new();
            if instruction.code() == Code::INVALID {
                text.push_str("(bad)");
            } else {
                formatter.format(&instruction, &mut text);
            }
            text.push_str(&self.destination(&instruction).unwrap_or_default());
            all.push((offset, text));
        }
        (end, all)
    }

    /// Whether the function continues at that distance from its first instruction.
    fn has(&self, offset: usize) -> bool {
        let Some(begin) = self.first.as_ref().and_then(|first| first.offset) else {
            return false;
        };
        let address = self.start.checked_add(offset as u64);
        let there = address.and_then(|address| (self.resolve)(address));
        there.and_then(|there| there.offset) == Some(begin + offset as u64)
    }

    /// The function that a jump or call goes to, if it is another one.
    fn destination(&self, instruction: &Instruction) -> Option<String> {
        if instruction.op_count() != 1 || instruction.op0_kind() != OpKind::NearBranch64 {
            return None;
        }
        let target = instruction.near_branch_target();
        let own = self.first.as_ref()?.offset?;
        let there = (self.resolve)(target)?;
        let offset = there.offset?;
        // Branches wrap around at 2^64.
        if offset == own.wrapping_add(target.wrapping_sub(self.start)) {
            return None;
        }
        let name = &there.frames.last()?.function;
        Some(match offset {
            0 => format!(" <{name}>"),
            _ => format!(" <{name}+{offset:#x}>"),
        })
    }
}
