//! `/asm/v1`.

use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, Formatter, Instruction, IntelFormatter, OpKind,
};
use serde::{Deserialize, Serialize};

use super::{Place, RequestError, SymbolServer, resolve, there};
use crate::profile::Profile;
use crate::symbolize::Resolved;

/// The most bytes of code that are disassembled for a request.
const MAX_CODE: usize = 256 << 10;
/// The most bytes of an instruction (Intel SDM, volume 2, 2.3.11).
const MAX_INSTRUCTION: usize = 15;
/// Bits of the guest's programs and kernel.
const BITNESS: u32 = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    name: Option<String>,
    code_id: Option<String>,
    debug_name: Option<String>,
    debug_id: Option<String>,
    start_address: String,
    size: String,
    #[serde(default)]
    continue_until_function_end: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    start_address: String,
    size: String,
    arch: &'static str,
    /// What the strings of each instruction are.
    syntax: [&'static str; 1],
    /// The distance from the start, in bytes, and the instruction.
    instructions: Vec<(usize, String)>,
}

/// The answer to the request with this `body`: the instructions from an address of a library on.
pub fn answer(
    server: &SymbolServer,
    profile: &Profile,
    body: &[u8],
) -> Result<Vec<u8>, RequestError> {
    let body: Body = serde_json::from_slice(body)?;
    let places = body.library(server).ok_or(RequestError::NoLibrary)?;
    let start = number(&body.start_address)?;
    let size = usize::try_from(number(&body.size)?).unwrap_or(usize::MAX);
    let asked = there(profile, places, start).ok_or(RequestError::NoCode)?;
    let wanted = if body.continue_until_function_end {
        MAX_CODE
    } else {
        // The last instruction begins within the size.
        size.saturating_add(MAX_INSTRUCTION).min(MAX_CODE)
    };
    let code = profile.resolver.code(asked, wanted);
    let code = code.ok_or(RequestError::NoCode)?;
    let function = Function {
        profile,
        places,
        start,
        resolved: resolve(profile, places, start),
    };
    let (size, instructions) = function.instructions(&code, size, body.continue_until_function_end);
    let answer = Answer {
        start_address: format!("{start:#x}"),
        size: format!("{size:#x}"),
        arch: "x86_64",
        syntax: ["Intel"],
        instructions,
    };
    Ok(serde_json::to_vec(&answer)?)
}

impl Body {
    /// Where its library is: by the debug id, or by the code id where that is missing.
    fn library<'a>(&self, server: &'a SymbolServer) -> Option<&'a [Place]> {
        let by_debug_id = (self.debug_name.as_ref()).zip(self.debug_id.as_ref());
        let by_debug_id = by_debug_id.and_then(|(name, id)| server.library(name, id));
        by_debug_id
            .or_else(|| server.library_by_code(self.name.as_deref()?, self.code_id.as_deref()?))
    }
}

/// A number as the protocol has addresses: `"0x1f"`.
fn number(text: &str) -> Result<u32, RequestError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| RequestError::NotANumber)
}

/// What is disassembled.
struct Function<'a> {
    profile: &'a Profile,
    places: &'a [Place],
    /// The first instruction's address in the library.
    start: u32,
    /// What is there.
    resolved: Option<Resolved>,
}

impl Function<'_> {
    /// The instructions of `code`, and their bytes: those that begin in the first `size` bytes, and further ones of the same function if it
    /// `continues`.
    fn instructions(
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
        let ip = u64::from(self.start);
        let mut decoder = Decoder::with_ip(BITNESS, code, ip, DecoderOptions::NONE);
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

    /// Whether the function goes on at that distance from its first instruction.
    fn has(&self, offset: usize) -> bool {
        let Some(begin) = self.resolved.as_ref().and_then(|first| first.offset) else {
            return false;
        };
        let address = u32::try_from(offset).ok();
        let address = address.and_then(|offset| self.start.checked_add(offset));
        let there = address.and_then(|address| resolve(self.profile, self.places, address));
        there.and_then(|there| there.offset) == Some(begin + offset as u64)
    }

    /// The function that a jump or call goes to, if it is another one.
    fn destination(&self, instruction: &Instruction) -> Option<String> {
        if instruction.op_count() != 1 || instruction.op0_kind() != OpKind::NearBranch64 {
            return None;
        }
        let target = u32::try_from(instruction.near_branch_target()).ok()?;
        let distance = i64::from(target) - i64::from(self.start);
        let own = self.resolved.as_ref()?.offset?.cast_signed();
        let there = resolve(self.profile, self.places, target)?;
        let offset = there.offset?;
        if offset.cast_signed() == own + distance {
            return None;
        }
        let name = &there.frames.last()?.function;
        Some(match offset {
            0 => format!(" <{name}>"),
            _ => format!(" <{name}+{offset:#x}>"),
        })
    }
}
