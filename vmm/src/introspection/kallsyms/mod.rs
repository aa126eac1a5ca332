//! The symbol table that a kernel carries for itself (`kernel/kallsyms.c`, written by
//! `scripts/kallsyms.c`), found in an image by the shape of its parts.
//!
//! Nothing in an image says where the parts are. The token table gives itself away: 256 strings, the
//! digits among them in a row, and an index of where each starts. Counting backwards from it leads to
//! the compressed names, whose own index of markers proves them right. The addresses lie before or
//! after, in one of five encodings; the right one gives ascending addresses, and puts the kernel's
//! text where the image has it.

mod addresses;
mod names;
mod tokens;

use std::ops::Range;

use super::symbols::{Symbol, Symbols};
use tokens::Tokens;

/// A stretch of an image, as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// The link-time virtual address of its first byte.
    pub address: u64,
    /// Its bytes.
    pub data: &'a [u8],
}

/// Finds and reads the symbol table in `stretch`; `text` is where the image's kernel mapping lies, by
/// link-time addresses. `None` when there is no table in it that makes sense.
pub fn find(stretch: Stretch<'_>, text: &Range<u64>) -> Option<Symbols> {
    tokens::find(stretch.data).find_map(|tokens| read(stretch, &tokens, text))
}

fn read(stretch: Stretch<'_>, tokens: &Tokens<'_>, text: &Range<u64>) -> Option<Symbols> {
    let names = names::find(stretch.data, tokens)?;
    let decoded = names.decode(tokens)?;
    let anchors: Vec<usize> = decoded.positions(&["_text", "_stext"]);
    let addresses = addresses::find(stretch, &names, tokens, &|addresses| {
        anchors
            .iter()
            .any(|anchor| addresses.get(*anchor).is_some_and(|address| text.contains(address)))
    })?;
    let symbols = addresses
        .iter()
        .zip(&decoded.entries)
        .map(|(address, entry)| Symbol {
            address: *address,
            name_start: entry.start,
            name_length: entry.length,
            kind: entry.kind,
        })
        .collect();
    Some(Symbols::new(symbols, decoded.text))
}

#[cfg(test)]
mod tests;
