//! Finds the kernel's own symbol table (`kernel/kallsyms.c`, written by `scripts/kallsyms.c`) in an image, by the shape
//! of its parts.
//!
//! Nothing in an image points to the parts. The token table can be recognized: 256 strings, with the digits in a row,
//! and an index of their offsets. A backward search from it leads to the compressed names; their index of markers
//! confirms them. The addresses lie before or after the names, in one of five encodings. In the right one addresses
//! ascend, and a symbol with known contents has the address at which the image holds these.

mod addresses;
mod names;
mod tokens;

use super::symbols::{Symbol, Symbols};
use tokens::Tokens;

/// A contiguous range of an image, as it is in memory.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// The link-time virtual address of its first byte.
    pub address: u64,
    /// Its bytes.
    pub data: &'a [u8],
}

/// A symbol with known contents, which confirms a table.
pub struct Anchor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether the symbol can be at a link-time address.
    pub fits: &'a dyn Fn(u64) -> bool,
}

/// Finds and reads the symbol table in `stretch`. `None` if no table there gives `anchor` an address that fits.
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
