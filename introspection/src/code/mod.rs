//! What a kernel without BTF, or without a table of its variables, tells by its code.
//!
//! A recipe ([`recipes`]) reads one or a few functions whose purpose the kernel's source fixes, and finds in them where
//! a variable or a member of a structure is. [`Findings`] keeps what they find. Two recipes that disagree about a
//! value make it unknown.
//!
//! The code is untrusted as any other part of an image: each walk visits a bounded number of instructions.

mod findings;
pub mod flow;
mod recipes;
mod system_calls;
#[cfg(test)]
pub mod test_code;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};

pub use findings::Findings;
use flow::{Call, Flow};

use crate::Symbols;
use crate::image::KernelImage;

/// Maximum number of bytes of code that are searched. Distributions' kernels have some 20 MB of code.
const MAX_TEXT: usize = 64 << 20;
/// Maximum length of a function whose end isn't known, in bytes.
const MAX_FUNCTION: u64 = 64 << 10;

/// A kernel's code, by link-time address.
#[derive(Debug)]
pub struct Code<'a> {
    image: &'a KernelImage<'a>,
    symbols: &'a Symbols,
    /// Functions of a kernel without symbols.
    found: BTreeMap<&'static str, u64>,
}

impl<'a> Code<'a> {
    /// The code of `image`, with the names that `symbols` give.
    pub fn new(image: &'a KernelImage<'a>, symbols: &'a Symbols) -> Self {
        let mut code = Self {
            image,
            symbols,
            found: BTreeMap::new(),
        };
        if symbols.is_empty() {
            code.found = system_calls::functions(&code);
        }
        code
    }

    /// All that the code tells.
    pub fn findings(&self) -> Findings {
        let mut findings = Findings::default();
        for recipe in recipes::ALL {
            recipe(self, &mut findings);
        }
        findings
    }

    /// The instruction at `address`, with the link-time addresses that it has in the file. `None` outside the image, and
    /// if the bytes are none.
    pub fn instruction(&self, address: u64) -> Option<Instruction> {
        let bytes = self.image.bytes_from(address)?;
        let options = DecoderOptions::NONE;
        let mut instruction = Decoder::with_ip(64, bytes, address, options).decode();
        self.unrelocate(&mut instruction);
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Replaces the absolute addresses in `instruction`, which a running kernel has relocated.
    fn unrelocate(&self, instruction: &mut Instruction) {
        let address = instruction.memory_displacement64();
        for kind in instruction.op_kinds() {
            match kind {
                OpKind::Memory if instruction.memory_base() == Register::None => {
                    instruction.set_memory_displacement64(self.linked(address));
                }
                // Before 6.15 per-CPU variables are at numbers from 0 on, and don't move with the code.
                OpKind::Memory
                    if instruction.is_ip_rel_memory_operand()
                        && instruction.segment_prefix() == Register::GS
                        && !self.image.contains(address) =>
                {
                    instruction.set_memory_displacement64(self.relocated(address));
                }
                OpKind::Immediate32to64 => {
                    let linked = self.linked(instruction.immediate32to64().cast_unsigned());
                    instruction.set_immediate32to64(linked.cast_signed());
                }
                OpKind::Immediate64 => {
                    instruction.set_immediate64(self.linked(instruction.immediate64()));
                }
                _ => {}
            }
        }
    }

    /// The instructions of `range`, one after the other.
    pub fn instructions(&self, range: Range<u64>) -> impl Iterator<Item = Instruction> {
        let mut address = range.start;
        std::iter::from_fn(move || {
            let instruction = (address < range.end).then(|| self.instruction(address))??;
            address = instruction.next_ip();
            Some(instruction)
        })
    }

    /// The function `name`, or a variant of it, whose name has a suffix from the compiler.
    pub fn function(&self, name: &str) -> Option<Range<u64>> {
        let known = self.symbols.address_of(name);
        let known = known.or_else(|| self.found.get(name).copied());
        let start = known.or_else(|| {
            let prefix = format!("{name}.");
            let mut variants = self.symbols.names_with(&prefix);
            let variant = variants.find(|variant| !variant.contains("cold"))?;
            self.symbols.address_of(variant)
        })?;
        Some(self.from(start))
    }

    /// What the function `name` does.
    pub fn flow(&self, name: &str) -> Option<Flow> {
        Some(Flow::of(self, self.function(name)?))
    }

    /// What those of the functions `names` do that the kernel has.
    pub fn flows<const N: usize>(&self, names: [&str; N]) -> impl Iterator<Item = Flow> {
        names.into_iter().filter_map(|name| self.flow(name))
    }

    /// What the function at `start` does.
    pub fn flow_at(&self, start: u64) -> Flow {
        Flow::of(self, self.from(start))
    }

    /// Whether `call` is to the function `name`.
    pub fn is_call_to(&self, call: &Call, name: &str) -> bool {
        call.target.is_some_and(|target| {
            self.name(target) == Some(name) || self.found.get(name) == Some(&target)
        })
    }

    /// The calls in `flow` to the function `name`.
    pub fn calls_to<'f>(&'f self, flow: &'f Flow, name: &'f str) -> impl Iterator<Item = &'f Call> {
        (flow.calls.iter()).filter(move |call| self.is_call_to(call, name))
    }

    /// The function around `address`, if the symbols tell it.
    pub fn function_around(&self, address: u64) -> Option<Range<u64>> {
        let (_, offset) = self.symbols.function_at(address)?;
        Some(self.from(address - offset))
    }

    /// The function that begins at `start`.
    fn from(&self, start: u64) -> Range<u64> {
        let limit = start.saturating_add(MAX_FUNCTION);
        let end = self.symbols.address_after(start).unwrap_or(limit);
        start..end.min(limit)
    }

    /// Whether a function begins at `address`. Without symbols, all that isn't known is taken for one.
    pub fn is_function(&self, address: u64) -> bool {
        let at = self.symbols.function_at(address);
        self.symbols.is_empty()
            || at.is_some_and(|(name, offset)| offset == 0 && !name.contains(".cold"))
    }

    /// The name of the function that begins at `address`.
    pub fn name(&self, address: u64) -> Option<&str> {
        let (name, offset) = self.symbols.function_at(address)?;
        (offset == 0).then_some(name)
    }

    /// The bytes from `address` to the end of their segment.
    pub fn bytes_from(&self, address: u64) -> Option<&'a [u8]> {
        self.image.bytes_from(address)
    }

    /// The link-time address of `address`, which an instruction or a variable has.
    pub fn linked(&self, address: u64) -> u64 {
        self.image.linked(address)
    }

    /// What instructions have for link-time address `address`.
    pub fn relocated(&self, address: u64) -> u64 {
        self.image.relocated(address)
    }

    /// The image's segments: link-time addresses and bytes.
    pub fn segments(&self) -> impl Iterator<Item = (u64, &'a [u8])> {
        (self.image.segments().iter()).map(|segment| (segment.address, segment.data))
    }

    /// The code in the image: from `_stext` to `_etext`, or the whole first segment.
    pub fn text(&self) -> Option<(u64, &'a [u8])> {
        let [start, end] = self.symbols.addresses_of(["_stext", "_etext"]);
        let (first, _) = self.segments().next()?;
        let start = start.unwrap_or(first);
        let bytes = self.bytes_from(start)?;
        let length = end.and_then(|end| usize::try_from(end.checked_sub(start)?).ok());
        let length = length.unwrap_or(bytes.len()).min(MAX_TEXT);
        Some((start, &bytes[..length.min(bytes.len())]))
    }
}
