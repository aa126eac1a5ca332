//! The token table: the text that each byte of a compressed name stands for.

use crate::bytes::u16_at;

/// Tokens in a table.
const COUNT: usize = 256;
/// The tokens "0" to "9". Each byte that occurs in symbol names stands for itself, so the digits have their ASCII codes
/// as indices. No other data in a kernel looks like them.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
/// The index of token "0".
const FIRST_DIGIT: usize = b'0' as usize;
/// Maximum length of a token, in bytes (`KSYM_NAME_LEN`).
const MAX_TOKEN: usize = 512;
/// Maximum number of candidates.
const MAX_PLACES: usize = 64;
/// Maximum padding between the table and its index, in bytes.
const MAX_PADDING: usize = 8;

/// A token table.
#[derive(Debug)]
pub struct Tokens<'a> {
    /// The table's offset within the searched bytes.
    pub start: usize,
    /// The end of the index that follows the table.
    pub end: usize,
    tokens: [&'a [u8]; COUNT],
}

impl<'a> Tokens<'a> {
    /// The text that `byte` stands for.
    pub fn expand(&self, byte: u8) -> &'a [u8] {
        self.tokens[usize::from(byte)]
    }
}

/// All parts of `data` that have the form of a token table.
pub fn find(data: &[u8]) -> impl Iterator<Item = Tokens<'_>> {
    memchr::memmem::find_iter(data, DIGITS)
        .take(MAX_PLACES)
        .filter_map(|digits| at(data, digits))
}

/// The table with its digits at `digits`.
fn at(data: &[u8], digits: usize) -> Option<Tokens<'_>> {
    let mut end = digits;
    for _ in FIRST_DIGIT..COUNT {
        end += token(data, end)?.len() + 1;
    }
    (end..=end + MAX_PADDING)
        .filter(|index| index % 2 == 0)
        .find_map(|index| with_index(data, digits, index))
}

/// The table with its digits at `digits`, if its index is at `index`.
fn with_index(data: &[u8], digits: usize, index: usize) -> Option<Tokens<'_>> {
    let entry = |token: usize| Some(usize::from(u16_at(data, index + token * 2)?));
    let start = digits.checked_sub(entry(FIRST_DIGIT)?)?;
    let mut tokens: [&[u8]; COUNT] = [&[]; COUNT];
    let mut expected = 0;
    for (number, slot) in tokens.iter_mut().enumerate() {
        if entry(number)? != expected {
            return None;
        }
        *slot = token(data, start + expected)?;
        expected += slot.len() + 1;
    }
    Some(Tokens {
        start,
        end: index + COUNT * 2,
        tokens,
    })
}

/// The NUL-terminated string at `start`, without its NUL.
fn token(data: &[u8], start: usize) -> Option<&[u8]> {
    let bytes = data.get(start..)?;
    let bytes = &bytes[..bytes.len().min(MAX_TOKEN)];
    memchr::memchr(0, bytes).map(|length| &bytes[..length])
}
