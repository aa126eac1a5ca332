//! Strings.

use super::super::ProcessMemory;
use super::layout::{integer, string};
use super::{instance_type, read_object};
use crate::bytes::{u32_at, u64_at};

/// Maximum number of characters of a name or a path.
const MAX_TEXT: usize = 1024;
/// Maximum number of strings that are visited for one text, and of those on the way to one that has characters.
const MAX_PARTS: usize = 64;
const MAX_INDIRECT: usize = 8;
/// Bytes of a string's head with two words.
const HEAD: usize = 32;

/// Characters at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characters {
    pub address: u64,
    /// The number of characters.
    pub length: usize,
    /// Whether each has two bytes (UTF-16), or one (ISO 8859-1).
    pub is_wide: bool,
}

/// What a string consists of.
enum Parts {
    Characters(Characters),
    /// Two strings.
    Both(u64, u64),
}

impl Characters {
    /// Bytes of a character.
    pub fn width(&self) -> usize {
        1 + usize::from(self.is_wide)
    }
}

/// What the string that `reference` refers to consists of.
fn parts(mut reference: u64, memory: &mut dyn ProcessMemory) -> Option<Parts> {
    let (mut begin, mut whole) = (0, None);
    for _ in 0..MAX_INDIRECT {
        let mut head = [0; HEAD];
        // The shortest string has 16 bytes, and there may be nothing behind it.
        let short = head.get_mut(..HEAD / 2)?;
        let at = read_object(reference, memory, short)?;
        let number = instance_type(&head, memory)?;
        (number < string::END).then_some(())?;
        let own = usize::try_from(u32_at(&head, string::LENGTH)?).ok()?;
        let length = *whole.get_or_insert(own);
        let is_wide = number & string::ONE_BYTE == 0;
        let kind = number & string::REPRESENTATION;
        if kind != string::SEQUENTIAL {
            memory.read(at, &mut head)?;
        }
        let (first, second) = (
            u64_at(&head, string::FIRST)?,
            u64_at(&head, string::SECOND)?,
        );
        let address = match kind {
            string::SEQUENTIAL => at.checked_add(string::CHARACTERS)?,
            string::EXTERNAL if number & string::UNCACHED == 0 => second,
            string::SLICED => {
                begin += u64::try_from(integer(second)?).ok()?;
                reference = first;
                continue;
            }
            string::THIN => {
                reference = first;
                continue;
            }
            // Of a part, these aren't its own.
            string::CONS if begin == 0 && length == own => return Some(Parts::Both(first, second)),
            _ => return None,
        };
        // A part is within its parent.
        (usize::try_from(begin).ok()?.checked_add(length)? <= own).then_some(())?;
        let width = 1 + u64::from(is_wide);
        return Some(Parts::Characters(Characters {
            address: address.checked_add(begin.checked_mul(width)?)?,
            length,
            is_wide,
        }));
    }
    None
}

/// The characters of the string that `reference` refers to. `None` if they aren't in one place.
pub fn characters(reference: u64, memory: &mut dyn ProcessMemory) -> Option<Characters> {
    match parts(reference, memory)? {
        Parts::Characters(characters) => Some(characters),
        // The halves of a string whose characters have been put together are the whole and an empty one.
        Parts::Both(first, second) => {
            let Parts::Characters(rest) = parts(second, memory)? else {
                return None;
            };
            match parts(first, memory)? {
                Parts::Characters(characters) if rest.length == 0 => Some(characters),
                _ => None,
            }
        }
    }
}

/// The string that `reference` refers to, at most [`MAX_TEXT`] characters. `None` if it is no string.
pub fn text(reference: u64, memory: &mut dyn ProcessMemory) -> Option<String> {
    let mut text = String::new();
    let mut left = vec![reference];
    let mut room = MAX_TEXT;
    for _ in 0..MAX_PARTS {
        let Some(next) = left.pop().filter(|_| room > 0) else {
            return Some(text);
        };
        match parts(next, memory)? {
            Parts::Both(first, second) => left.extend([second, first]),
            Parts::Characters(found) => {
                let length = found.length.min(room);
                room -= length;
                let mut bytes = vec![0; length * found.width()];
                memory.read(found.address, &mut bytes)?;
                if found.is_wide {
                    let units = bytes.chunks_exact(2);
                    let units = units.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                    let decoded = char::decode_utf16(units);
                    text.extend(decoded.map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER)));
                } else {
                    text.extend(bytes.iter().map(|byte| char::from(*byte)));
                }
            }
        }
    }
    (left.is_empty() || room == 0).then_some(text)
}
