//! What a program says of its own parts (`moduledata` in Go's `src/runtime/symtab.go`), for versions from 1.18 on.

use super::super::file::{Elf, Header};
use super::{GoTable, MAX_PLACES, number};

/// The places of words that the description has: of the parts of the table, of the functions' number and bounds, of the code.
const PARTS: [usize; 5] = [1, 4, 7, 10, 13];
const INDEX: usize = 16;
const COUNT: usize = 17;
const FIRST: usize = 20;
const LAST: usize = 21;
const TEXT: usize = 22;
/// The number of its words that are read.
const WORDS: usize = 41;
/// The number of bytes of a word.
const WORD: usize = 8;

/// The addresses that the table alone doesn't tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Module {
    /// Of the code, which functions' begins count from.
    pub text: u64,
    /// What offsets of functions' further tables count from.
    pub function_data: u64,
}

impl Module {
    /// What the program says that has `table` at `address`: only if it says of the table what the table says itself.
    pub fn find<H: Header>(elf: &Elf<'_, H>, address: u64, table: &GoTable<'_>) -> Option<Self> {
        let in_file = words_in_file(elf).filter(|(_, word)| *word == address);
        let relocated = elf.relative().filter(|(_, word)| *word == address);
        let places = in_file.chain(relocated).map(|(place, _)| place);
        places
            .take(MAX_PLACES)
            .find_map(|place| Self::read(&words_at(elf, place)?, address, table))
    }

    fn read(words: &[u64; WORDS], address: u64, table: &GoTable<'_>) -> Option<Self> {
        let text = words[TEXT];
        let part = |word: usize| address.checked_add(table.header(word)?);
        let bound = |place: usize| text.checked_add(number(table.index, place, table.form.word)?);
        let calls = table.form.calls?;
        let are_parts = (3..)
            .zip(PARTS)
            .all(|(word, place)| part(word) == Some(words[place]));
        let is_right = are_parts
            && part(7) == Some(words[INDEX])
            && words[COUNT].checked_sub(1) == Some(table.count as u64)
            && bound(0) == Some(words[FIRST])
            && bound(2 * table.count * table.form.word) == Some(words[LAST])
            && (table.text == 0 || table.text == text);
        is_right.then_some(Self {
            text,
            function_data: *words.get(calls.function_data)?,
        })
    }
}

/// All words of the segments that programs write to, each with its address.
fn words_in_file<'a, H: Header>(elf: &Elf<'a, H>) -> impl Iterator<Item = (u64, u64)> + use<'a, H> {
    let words = elf
        .writable_segments()
        .into_iter()
        .flat_map(|(begin, bytes)| {
            let first = begin.checked_next_multiple_of(WORD as u64).unwrap_or(begin);
            let skipped = usize::try_from(first - begin).unwrap_or(0);
            let (words, _) = bytes.get(skipped..).unwrap_or_default().as_chunks::<WORD>();
            let addresses = (first..=u64::MAX).step_by(WORD);
            addresses
                .zip(words)
                .map(|(address, word)| (address, u64::from_le_bytes(*word)))
        });
    // In a hostile file all segments have the same bytes.
    words.take(elf.bytes.len() / WORD)
}

/// The words from `place` on, as they are when the dynamic linker has written its part.
fn words_at<H: Header>(elf: &Elf<'_, H>, place: u64) -> Option<[u64; WORDS]> {
    let (bytes, _) = elf.bytes_at(place)?.as_chunks::<WORD>();
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.get(..WORDS)?) {
        *word = u64::from_le_bytes(*bytes);
    }
    for (address, value) in elf.relative() {
        let distance = usize::try_from(address.wrapping_sub(place)).ok();
        let word = distance.filter(|distance| distance.is_multiple_of(WORD));
        if let Some(word) = word.and_then(|distance| words.get_mut(distance / WORD)) {
            *word = value;
        }
    }
    Some(words)
}
