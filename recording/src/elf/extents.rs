//! Where functions end: symbol tables have begins, and not always sizes.

/// A symbol of a function.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Its address.
    pub address: u64,
    /// Its size in bytes; 0 if the table doesn't tell, as for most assembly code.
    pub size: u64,
}

/// What an address begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The function with this index, or its rest after another one within it.
    Function(usize),
    /// Code of which no function is known.
    Unknown,
}

/// The end of `function`. `next` is the first address behind its start that has another symbol, or is the end of its section: nothing is
/// known of what is there. A function without a size ends there, at the latest.
pub fn end(function: Extent, next: Option<u64>) -> u64 {
    match function.size {
        0 => next.unwrap_or(function.address),
        size => function.address.saturating_add(size),
    }
}

/// All begins, by address, of `functions` that are sorted by address. Several functions at one address stay several. `next` is as for
/// [`end`].
pub fn begins(functions: &[Extent], next: impl Fn(u64) -> Option<u64>) -> Vec<(u64, Begin)> {
    let mut all = Vec::with_capacity(functions.len());
    // The functions around the present address, outermost first: their ends and indices.
    let mut open: Vec<(u64, usize)> = Vec::new();
    let mut first = 0;
    for group in functions.chunk_by(|left, right| left.address == right.address) {
        let address = group.first().map_or(0, |function| function.address);
        close(&mut open, address, &mut all);
        all.extend((first..first + group.len()).map(|index| (address, Begin::Function(index))));
        // Of several at one address, the one with the largest size tells.
        let largest = (first..)
            .zip(group)
            .max_by_key(|(_, function)| function.size);
        if let Some((index, function)) = largest {
            let around = open.last().map(|(end, _)| *end);
            let next = next(address).into_iter().chain(around).min();
            open.push((end(*function, next), index));
        }
        first += group.len();
    }
    close(&mut open, u64::MAX, &mut all);
    all
}

/// Ends the functions that end before `address`, or at it.
fn close(open: &mut Vec<(u64, usize)>, address: u64, all: &mut Vec<(u64, Begin)>) {
    while let Some((end, _)) = open.pop_if(|(end, _)| *end <= address) {
        while open.pop_if(|(outer, _)| *outer <= end).is_some() {}
        if end < address {
            let rest = open
                .last()
                .map_or(Begin::Unknown, |(_, index)| Begin::Function(*index));
            all.push((end, rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins as text: a function's index, or a dash.
    fn text(functions: &[(u64, u64)], next: &[u64]) -> String {
        let functions: Vec<_> = functions
            .iter()
            .map(|(address, size)| Extent {
                address: *address,
                size: *size,
            })
            .collect();
        let next = |address| next.iter().copied().find(|next| *next > address);
        let begins = begins(&functions, next);
        assert!(begins.is_sorted_by_key(|(address, _)| *address));
        let words: Vec<String> = begins
            .iter()
            .map(|(address, begin)| match begin {
                Begin::Function(index) => format!("{address:x}:{index}"),
                Begin::Unknown => format!("{address:x}:-"),
            })
            .collect();
        words.join(" ")
    }

    #[test]
    fn functions_end_where_their_symbols_say() {
        for (functions, next, expected) in [
            // Ends follow from sizes.
            (
                &[(0x10, 0x10), (0x20, 8)][..],
                &[0x40][..],
                "10:0 20:1 28:-",
            ),
            (&[(0x10, 8), (0x20, 0x20)], &[0x40], "10:0 18:- 20:1 40:-"),
            // Without a size the next symbol or the section's end is the end.
            (
                &[(0x10, 0), (0x30, 0)],
                &[0x20, 0x30, 0x40],
                "10:0 20:- 30:1 40:-",
            ),
            (&[(0x10, 0)], &[], "10:0 10:-"),
            // A label ends with the function around it.
            (&[(0x10, 0x20), (0x18, 0)], &[0x18, 0x40], "10:0 18:1 30:-"),
            // Code after a part with a size belongs to the function around it.
            (&[(0x10, 0x20), (0x18, 4)], &[0x40], "10:0 18:1 1c:0 30:-"),
            (NESTED, &[0x40], "10:0 14:1 18:2 20:0 30:-"),
            // Functions that overlap, which no compiler makes.
            (&[(0x10, 0x10), (0x18, 0x10)], &[0x40], "10:0 18:1 28:-"),
            // The largest symbol at an address gives the size.
            (
                &[(0x10, 0), (0x10, 8), (0x10, 4)],
                &[0x40],
                "10:0 10:1 10:2 18:-",
            ),
            (&[(u64::MAX - 1, 9)], &[], "fffffffffffffffe:0"),
        ] {
            assert_eq!(text(functions, next), expected, "{functions:x?}");
        }
    }

    const NESTED: &[(u64, u64)] = &[(0x10, 0x20), (0x14, 0xc), (0x18, 8)];
}
