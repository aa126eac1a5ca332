//! The symbol table that a kernel carries for itself (`kernel/kallsyms.c`, written by
//! `scripts/kallsyms.c`), found in an image by the shape of its parts.
//!
//! Nothing in an image says where the parts are. The token table gives itself away: 256 strings, the
//! digits among them in a row, and an index of where each starts. Counting backwards from it leads to
//! the compressed names, whose own index of markers proves them right. The addresses lie before or
//! after, in one of five encodings; the right one gives ascending addresses, and puts a symbol with
//! known contents where the image has these.

mod addresses;
mod names;
mod tokens;

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

/// A symbol that proves a table right.
pub struct Anchor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it can be at a link-time address.
    pub fits: &'a dyn Fn(u64) -> bool,
}

/// Finds and reads the symbol table in `stretch`. `None` when there is no table in it that puts `anchor`
/// where it fits.
pub fn find(stretch: Stretch<'_>, anchor: &Anchor<'_>) -> Option<Symbols> {
    tokens::find(stretch.data).find_map(|tokens| read(stretch, &tokens, anchor))
}

fn read(stretch: Stretch<'_>, tokens: &Tokens<'_>, anchor: &Anchor<'_>) -> Option<Symbols> {
    let names = names::find(stretch.data, tokens)?;
    let decoded = names.decode(tokens)?;
    let position = decoded.position(anchor.name)?;
    let addresses = addresses::find(stretch, &names, tokens, &|addresses| {
        addresses
            .get(position)
            .is_some_and(|address| (anchor.fits)(*address))
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
