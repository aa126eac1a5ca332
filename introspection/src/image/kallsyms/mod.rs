//! Finds the kernel's own symbol table (`kernel/kallsyms.c`, written by `scripts/kallsyms.c`) in an image, by the form
//! of its parts.
//!
//! Nothing in an image points to the parts. The token table can be recognized: 256 strings with the digits in sequence,
//! and an index of their offsets. A backward search from it leads to the compressed names, which their index of markers
//! confirms. The addresses lie before or after the names, in one of five encodings. In the right encoding, addresses
//! ascend, and a symbol with known contents has the address at which the image has these contents.

mod addresses;
mod names;
mod tokens;

use super::symbols::{Symbol, Symbols};
use tokens::Tokens;

/// A contiguous range of an image, as in memory.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// The virtual address of its first byte: the link-time address, or the run-time address.
    pub address: u64,
    /// Its bytes.
    pub data: &'a [u8],
}

/// A symbol with known contents, which confirms a table.
pub struct Anchor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether the symbol can be at an address.
    pub fits: &'a dyn Fn(u64) -> bool,
}

/// Maximum amount of work for searches through an image, so that a malicious image doesn't take minutes. Counts numbers
/// compared, names visited and bytes decoded. A distribution's kernel takes a few percent of it.
#[derive(Debug)]
pub struct Budget(usize);

impl Budget {
    /// The budget for all searches in one image.
    pub fn new() -> Self {
        Self(256 << 20)
    }

    /// Spends `amount`. `None` if nothing is left after that.
    fn spend(&mut self, amount: usize) -> Option<()> {
        self.0 = self.0.saturating_sub(amount);
        (self.0 > 0).then_some(())
    }
}

/// Finds and reads the symbol table in `stretch`. `None` if no table there gives the first of `anchors` that it has an
/// address that fits.
pub fn find(stretch: Stretch<'_>, anchors: &[Anchor<'_>], budget: &mut Budget) -> Option<Symbols> {
    tokens::find(stretch.data).find_map(|tokens| read(stretch, &tokens, anchors, budget))
}

fn read(
    stretch: Stretch<'_>,
    tokens: &Tokens<'_>,
    anchors: &[Anchor<'_>],
    budget: &mut Budget,
) -> Option<Symbols> {
    let names = names::find(stretch.data, tokens, budget)?;
    let decoded = names.decode(tokens, budget)?;
    let mut known = anchors.iter();
    let (anchor, position) =
        known.find_map(|anchor| Some((anchor, decoded.position(anchor.name)?)))?;
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
            size: 0,
            name_start: entry.start,
            name_length: entry.length,
            kind: entry.kind,
        })
        .collect();
    Some(Symbols::new(symbols, decoded.text, Vec::new()))
}

/// Where `data` has the names of symbols other than functions, and tokens for a function's type letter and for a letter
/// of its name. `None` if there is no table.
pub fn names_of_variables(data: &[u8]) -> Option<(Vec<std::ops::Range<usize>>, [u8; 2])> {
    tokens::find(data).find_map(|tokens| {
        let names = names::find(data, &tokens, &mut Budget::new())?;
        let places = names.places(&tokens).into_iter();
        let variables = places.filter(|(_, kind)| !kvmprof_abi::kallsyms::is_function(*kind));
        let single = |letter| (0..=u8::MAX).find(|byte| tokens.expand(*byte) == [letter]);
        Some((
            variables.map(|(place, _)| place).collect(),
            [single(b't')?, single(b'x')?],
        ))
    })
}

#[cfg(test)]
mod tests;
