//! The compressed names: for each symbol a length, then this number of tokens.

use super::Budget;
use super::tokens::Tokens;
use crate::bytes::{index_at, u8_at, u64_at};

/// Minimum number of symbols in a table.
const MIN_SYMBOLS: usize = 256;
/// Maximum number of symbols in a table; a kernel with everything built in has some 400,000.
const MAX_SYMBOLS: usize = 4 << 20;
/// Symbols between two markers.
const MARKER_DISTANCE: usize = 256;
/// Maximum length of a name, in bytes; `KSYM_NAME_LEN` is 512.
const MAX_NAME: usize = 2048;
/// Maximum number of bytes of all names.
const MAX_TEXT: usize = 256 << 20;
/// Maximum distance from the names to the token table, in bytes.
const MAX_DISTANCE: usize = 64 << 20;

/// The compressed names.
#[derive(Debug)]
pub struct Names<'a> {
    data: &'a [u8],
    /// The number of names.
    pub count: usize,
    /// The offset of `kallsyms_num_syms` within the searched bytes.
    pub count_position: usize,
    /// The offset of the first name.
    start: usize,
}

/// One decoded name: a part of [`Decoded::text`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub start: u32,
    pub length: u16,
    /// The type letter of nm(1).
    pub kind: u8,
}

/// All names, decoded.
#[derive(Debug)]
pub struct Decoded {
    pub text: String,
    pub entries: Vec<Entry>,
}

/// Finds the names before `tokens`.
pub fn find<'a>(data: &'a [u8], tokens: &Tokens<'_>, budget: &mut Budget) -> Option<Names<'a>> {
    // In all versions except 6.2 and 6.3, the markers are right before the tokens, so their number nearly gives the count.
    let markers = markers_before(data, tokens.start);
    find_with(data, tokens, budget, &|count| {
        count.div_ceil(MARKER_DISTANCE) == markers
    })
    .or_else(|| find_with(data, tokens, budget, &|_| true))
}

/// The number of consecutive 32-bit numbers that ascend from 0 and end at `end`, except for padding.
fn markers_before(data: &[u8], end: usize) -> usize {
    let at = |position: Option<usize>| index_at(data, position?).filter(|marker| *marker != 0);
    let padded = at(end.checked_sub(4)).is_none();
    let last = end.saturating_sub(if padded { 8 } else { 4 });
    let mut above = usize::MAX;
    let mut count = 0;
    while let Some(marker) = at(last.checked_sub(count * 4)).filter(|marker| *marker < above)
        && count <= MAX_SYMBOLS / MARKER_DISTANCE
    {
        above = marker;
        count += 1;
    }
    count + 1
}

/// Finds the names before `tokens`. `expected` says which counts are possible.
fn find_with<'a>(
    data: &'a [u8],
    tokens: &Tokens<'_>,
    budget: &mut Budget,
    expected: &dyn Fn(usize) -> bool,
) -> Option<Names<'a>> {
    let last = tokens.start & !3;
    let first = last.saturating_sub(MAX_DISTANCE);
    for position in (first..last).rev().skip(3).step_by(4) {
        budget.spend(1)?;
        let names = Names::with_count_at(data, position, tokens.start, expected);
        if let Some(names) = names
            && names.is_marked(tokens.start, budget)
        {
            return Some(names);
        }
    }
    None
}

impl<'a> Names<'a> {
    /// The names that follow their count at `position` and end before `limit`. `None` if the count is impossible.
    fn with_count_at(
        data: &'a [u8],
        position: usize,
        limit: usize,
        expected: &dyn Fn(usize) -> bool,
    ) -> Option<Self> {
        let count = index_at(data, position)?;
        if !(MIN_SYMBOLS..=MAX_SYMBOLS).contains(&count) || !expected(count) {
            return None;
        }
        // The count is a 64-bit number, or is padded to 64 bits if the table is aligned to 8 bytes.
        let padded = index_at(data, position + 4)? == 0;
        let start = position + if padded { 8 } else { 4 };
        let room = limit.checked_sub(start)?;
        // Each name takes at least a length, a type and a character.
        (room / count >= 2).then_some(Self {
            data,
            count,
            count_position: position,
            start,
        })
    }

    /// The tokens of the name at `position`, and the offset of the next name. Lengths above 127 take two bytes (since
    /// 6.1; earlier kernels have no such lengths).
    fn at(&self, position: usize) -> Option<(&'a [u8], usize)> {
        let low = usize::from(u8_at(self.data, position)?);
        let (length, start) = if low < 0x80 {
            (low, position + 1)
        } else {
            let high = usize::from(u8_at(self.data, position + 1)?);
            (low & 0x7f | high << 7, position + 2)
        };
        let end = start.checked_add(length)?;
        let tokens = self.data.get(start..end)?;
        (length > 0).then_some((tokens, end))
    }

    /// True if the markers after the names hold the offset of every 256th name.
    fn is_marked(&self, limit: usize, budget: &mut Budget) -> bool {
        let mut positions = Vec::new();
        let mut position = self.start;
        for number in 0..self.count {
            if budget.spend(1).is_none() {
                return false;
            }
            if number % MARKER_DISTANCE == 0 {
                positions.push(position - self.start);
            }
            match self.at(position) {
                Some((_, next)) if next <= limit => position = next,
                _ => return false,
            }
        }
        // Markers have 32 bits since 5.0, and had 64 bits before.
        let matches = |start: usize, width: usize| {
            positions.iter().enumerate().all(|(index, expected)| {
                let at = start + index * width;
                match width {
                    4 => index_at(self.data, at) == Some(*expected),
                    _ => u64_at(self.data, at) == Some(*expected as u64),
                }
            })
        };
        [4_usize, 8].iter().any(|alignment| {
            let start = position.next_multiple_of(*alignment);
            matches(start, 4) || matches(start, 8)
        })
    }

    /// The places of the tokens of all names within the searched bytes, and the type letter of each symbol.
    pub fn places(&self, tokens: &Tokens<'_>) -> Vec<(std::ops::Range<usize>, u8)> {
        let mut position = self.start;
        let places = (0..self.count).map_while(|_| {
            let (compressed, next) = self.at(position)?;
            position = next;
            let kind = tokens.expand(*compressed.first()?).first()?;
            Some((next - compressed.len()..next, *kind))
        });
        places.collect()
    }

    /// Decodes all names.
    pub fn decode(&self, tokens: &Tokens<'_>, budget: &mut Budget) -> Option<Decoded> {
        let mut text = Vec::with_capacity(self.count.saturating_mul(24));
        let mut entries = Vec::with_capacity(self.count);
        let mut position = self.start;
        for _ in 0..self.count {
            let (compressed, next) = self.at(position)?;
            let start = text.len();
            for byte in compressed {
                text.extend_from_slice(tokens.expand(*byte));
                if text.len() - start > MAX_NAME {
                    return None;
                }
            }
            if text.len() > MAX_TEXT {
                return None;
            }
            budget.spend(text.len() - start)?;
            // The first character is the symbol's type.
            entries.push(Entry {
                kind: *text.get(start)?,
                start: u32::try_from(start + 1).ok()?,
                length: u16::try_from(text.len() - start - 1).ok()?,
            });
            position = next;
        }
        let text = String::from_utf8(text).ok()?;
        // If every type is ASCII, the slices for the names can't begin within a character.
        let sound = entries.iter().all(|entry| entry.kind.is_ascii());
        sound.then_some(Decoded { text, entries })
    }
}

impl Decoded {
    /// The index of the first entry called `name`.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| {
            let start = entry.start as usize;
            self.text.get(start..start + usize::from(entry.length)) == Some(name)
        })
    }
}
