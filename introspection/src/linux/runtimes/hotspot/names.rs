//! Names, files and lines of methods.
//!
//! Methods, their constants and their names are in memory that isn't moved (metaspace, and the C heap for names), while the class that they
//! belong to is loaded. The memory of a class that was unloaded is used again, for others of the same sizes: so a method is told from one that
//! had its address by what leads to its class, by that class's name, and by what changes from name to name at the same address: its length,
//! its first characters, and a random number that a name gets when it is made (`Symbol::_hash_and_refcount`).

use kvmprof_recording::file::LanguageFunction;

use super::super::{FunctionIdentity, ProcessMemory};
use super::layout::{Methods, symbol};
use super::scopes::Packed;
use crate::bytes::{u16_at, u32_at, u64_at};

/// Bytes of the structures that methods consist of, as far as they are read.
const MAX_STRUCTURE: usize = 256;
/// Maximum number of bytes of a name.
const MAX_TEXT: usize = 1024;
/// Maximum number of bytes of a table of lines, and of stretches of lines that are kept.
const MAX_TABLE: u64 = 64 << 10;
const MAX_LINES: usize = 4096;
/// `ConstMethodFlags`: lines follow the code.
const HAS_LINES: u16 = 1;
/// In a table of lines, both numbers follow; other bytes have five bits of the bytecode's distance, and three of the line's.
const BOTH: u8 = 0xff;
/// The bits of a name's first word that are the number of its references.
const REFERENCES: u64 = 0xffff;

/// A method, as far as it is read at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its `ConstMethod`, and the constants.
    constant: u64,
    pool: u64,
    /// The first byte of its code, and the number of bytes; 0 for a native method.
    pub code: u64,
    pub code_length: u16,
    flags: u16,
    name: u16,
    /// The length of the `ConstMethod`, in bytes.
    length: u64,
    /// The name of the class.
    class: u64,
    /// The number of constants, and that of the file's name.
    constants: u32,
    file: u16,
    pub identity: FunctionIdentity,
}

impl Method {
    /// The `Method` at `address`. `None` if there is none.
    pub fn read(layout: &Methods, address: u64, memory: &mut dyn ProcessMemory) -> Option<Self> {
        let at = |base: u64, offset: usize| base.checked_add(offset as u64);
        let constant = memory.word(at(address, layout.constant)?)?;
        let mut bytes = [0; MAX_STRUCTURE];
        let head = bytes.get_mut(..layout.bytes)?;
        memory.read(constant, head)?;
        let pool = u64_at(head, layout.pool)?;
        let [flags, code_length, name] =
            [layout.flags, layout.code_length, layout.name].map(|field| u16_at(head, field));
        let (flags, code_length, name) = (flags?, code_length?, name?);
        let words = u32_at(head, layout.words)?;
        let head = bytes.get_mut(..layout.pool_bytes)?;
        memory.read(pool, head)?;
        let class = u64_at(head, layout.class)?;
        let constants = u32_at(head, layout.length)?;
        let file = u16_at(head, layout.file)?;
        // Only a class has constants that refer to it. Those of methods that only link others are their own (`linkToStatic`).
        let own_pool = memory.word(at(class, layout.class_pool)?)?;
        let is_class = own_pool == pool || memory.word(at(own_pool, layout.class)?)? == class;
        is_class.then_some(())?;
        let class_name = memory.word(at(class, layout.class_name)?)?;
        let first = memory.word(class_name)? & !REFERENCES;
        let parts = u64::from(code_length) << 32 | u64::from(name);
        Some(Self {
            constant,
            pool,
            code: at(constant, layout.bytes)?,
            code_length,
            flags,
            name,
            length: u64::from(words) * 8,
            class: class_name,
            constants,
            file,
            identity: [
                constant,
                pool,
                parts,
                class,
                class_name,
                first,
                words.into(),
                0,
            ],
        })
    }

    /// How far `instruction`, an address in its code, is from the first one.
    pub fn offset(&self, instruction: u64) -> Option<u32> {
        let offset = instruction.checked_sub(self.code)?;
        let is_inside = offset < u64::from(self.code_length);
        is_inside.then(|| u32::try_from(offset).ok())?
    }

    /// Its name, file and lines.
    pub fn describe(
        &self,
        layout: &Methods,
        has_no_zeros: bool,
        memory: &mut dyn ProcessMemory,
    ) -> Option<LanguageFunction> {
        let mut class = text(self.class, memory)?.replace('/', ".");
        // Hidden classes have their address behind their name, as `Loom$$Lambda+0x...`, which Java shows so.
        if let Some(address) = class.rfind("+0x") {
            class.replace_range(address..=address, "/");
        }
        let name = self.text(layout, self.name, memory)?;
        let file = match self.file {
            0 => None,
            file => self.text(layout, file, memory),
        };
        let lines = self.lines(has_no_zeros, memory).unwrap_or_default();
        let name = format!("{class}.{name}");
        Some(LanguageFunction {
            function: 0,
            name: name.chars().take(MAX_TEXT).collect(),
            file: file.unwrap_or_default(),
            line: lines.first().map_or(0, |(_, line)| *line),
            lines,
        })
    }

    /// The text of constant number `number`.
    fn text(
        &self,
        layout: &Methods,
        number: u16,
        memory: &mut dyn ProcessMemory,
    ) -> Option<String> {
        (number > 0 && u32::from(number) < self.constants).then_some(())?;
        let first = self.pool.checked_add(layout.pool_bytes as u64)?;
        let constant = memory.word(first.checked_add(8 * u64::from(number))?)?;
        text(constant, memory)
    }

    /// The lines of its code, by offset: its table follows the code.
    fn lines(&self, has_no_zeros: bool, memory: &mut dyn ProcessMemory) -> Option<Vec<(u32, u32)>> {
        let begin = self.code.checked_add(self.code_length.into())?;
        let length = self.constant.checked_add(self.length)?.checked_sub(begin)?;
        if self.flags & HAS_LINES == 0 || length > MAX_TABLE {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        memory.read(begin, &mut bytes)?;
        lines(&bytes, has_no_zeros)
    }
}

/// The lines of the table in `bytes`, by offset. `None` if it isn't one.
fn lines(bytes: &[u8], has_no_zeros: bool) -> Option<Vec<(u32, u32)>> {
    let mut packed = Packed::new(bytes, has_no_zeros);
    let (mut offset, mut line) = (0_u32, 0_u32);
    let mut lines = Vec::new();
    loop {
        let (further, down) = match packed.byte()? {
            0 => break,
            BOTH => (packed.signed()?, packed.signed()?),
            byte => (i32::from(byte >> 3), i32::from(byte & 7)),
        };
        offset = offset.checked_add_signed(further)?;
        line = line.checked_add_signed(down)?;
        (lines.len() < MAX_LINES).then_some(())?;
        lines.push((offset, line));
    }
    // Compilers write them in any order.
    lines.sort_by_key(|(offset, _)| *offset);
    lines.dedup_by_key(|(offset, _)| *offset);
    Some(lines)
}

/// The text of the `Symbol` at `address`, at most [`MAX_TEXT`] bytes.
fn text(address: u64, memory: &mut dyn ProcessMemory) -> Option<String> {
    let mut head = [0; symbol::TEXT];
    memory.read(address, &mut head)?;
    let length = usize::from(u16_at(&head, symbol::LENGTH)?).min(MAX_TEXT);
    let mut bytes = vec![0; length];
    memory.read(address.checked_add(symbol::TEXT as u64)?, &mut bytes)?;
    // Java's own form of UTF-8 differs only in characters that names rarely have.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_lines_are_read_to_their_end() {
        // 7 from bytecode 0 on, one more from 3 on, then both numbers: 2 back to 1, and 40 further down; what follows the end is no line.
        let table = [7, 3 << 3 | 1, BOTH, 3, 80, 0, 7];
        assert_eq!(lines(&table, false), Some(vec![(0, 7), (1, 48), (3, 8)]));
        // Packed numbers are one more where no byte may be 0.
        let table = [7, 3 << 3 | 1, BOTH, 4, 81, 0];
        assert_eq!(lines(&table, true), Some(vec![(0, 7), (1, 48), (3, 8)]));
        assert_eq!(lines(&[0], false), Some(Vec::new()));
        // Without an end, before the first line, and too many.
        assert_eq!(lines(&[7], false), None);
        assert_eq!(lines(&[7, BOTH, 0, 17, 0], false), None);
        assert_eq!(lines(&[9; MAX_LINES + 2], false), None);
    }
}
