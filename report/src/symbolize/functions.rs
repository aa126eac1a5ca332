//! The functions of a file or of generated code, by address.

use kvmprof_recording::elf::{MAX_NAMES_BYTES, bounded_name};
use kvmprof_recording::file::BinaryFunction;

/// Functions sorted by address.
#[derive(Debug, Default)]
pub struct FunctionTable {
    /// First address, length in bytes, and the range of the name in `names`.
    functions: Vec<(u64, u64, u32, u32)>,
    names: String,
}

/// Maximum number of nested functions that a search skips.
const MAX_NESTED: usize = 16;

impl FunctionTable {
    /// A table of `functions`: address, length, name. Of several at one address the last one is kept. One whose length isn't known (0) has its first
    /// byte alone: what is behind that may be anything. Long names are cut off, and functions beyond the limit are left out.
    pub fn new<'a>(functions: impl Iterator<Item = (u64, u64, &'a str)>) -> Self {
        let mut table = Self::default();
        for (address, length, name) in functions {
            let name = bounded_name(name);
            let begin = u32::try_from(table.names.len());
            let end = u32::try_from(table.names.len() + name.len());
            let (Ok(begin), Ok(end)) = (begin, end) else {
                break;
            };
            if table.names.len() + name.len() > MAX_NAMES_BYTES {
                break;
            }
            table.names.push_str(name);
            table.functions.push((address, length.max(1), begin, end));
        }
        table.functions.reverse();
        table.functions.sort_by_key(|(address, ..)| *address);
        table.functions.dedup_by_key(|(address, ..)| *address);
        table
    }

    /// The function at `address`: its name, which may be empty, and its start.
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = (self.functions).partition_point(|(begin, ..)| *begin <= address);
        let mut before = self.functions[..after].iter().rev().take(MAX_NESTED);
        let (begin, _, name_begin, name_end) =
            before.find(|(begin, length, ..)| address - begin < *length)?;
        let name = self.names.get(*name_begin as usize..*name_end as usize)?;
        Some((name, *begin))
    }

    /// The start and the length in bytes of each function that `is_wanted` by its name.
    pub fn wanted(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
        let wanted = self.functions.iter().filter(|(.., first, last)| {
            let name = self.names.get(*first as usize..*last as usize);
            name.is_some_and(&is_wanted)
        });
        wanted
            .map(|(begin, length, ..)| (*begin, *length))
            .collect()
    }

    /// A table of a file's `functions`.
    pub fn of_binary(functions: &[BinaryFunction]) -> Self {
        let functions = functions.iter();
        Self::new(
            functions.map(|function| (function.address, function.length, function.name.as_str())),
        )
    }

    /// True if there are no functions.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_functions_share_take_a_bounded_amount_of_memory() {
        let long = "x".repeat(65_000);
        let functions = (0..100_000).map(|address| (address, 1, long.as_str()));
        assert_eq!(FunctionTable::new(functions).names.len(), MAX_NAMES_BYTES);
    }

    #[test]
    fn functions_have_their_recorded_size() {
        let functions = [
            (0x100, 0x100, "outer"),
            (0x140, 4, "label"),
            (0x300, 0, "open"),
            (0x400, 0x10, ""),
            (0x500, 0, "end"),
        ];
        let table = FunctionTable::new(functions.into_iter());
        let found = |address| table.find(address);
        assert_eq!(found(0xff), None);
        assert_eq!(found(0x143), Some(("label", 0x140)));
        assert_eq!(found(0x150), Some(("outer", 0x100)));
        assert_eq!(found(0x200), None);
        assert_eq!(found(0x300), Some(("open", 0x300)));
        assert_eq!(found(0x301), None);
        assert_eq!(found(0x40f), Some(("", 0x400)));
        assert_eq!(found(0x410), None);
        assert_eq!(found(0x501), None);
        let wanted = table.wanted(|name| ["outer", "open", "end"].contains(&name));
        assert_eq!(wanted, [(0x100, 0x100), (0x300, 1), (0x500, 1)]);
    }
}
