//! The limits of what is kept of a recording in memory.

use super::block::{Block, Kind};

/// Maximum size in memory of the symbols, mappings and files that are kept, in bytes: a small file can unpack to any size, and a
/// guest that runs for days can make up any number of them.
const MAX_SYMBOLS: usize = 192 << 20;
const MAX_MAPPINGS: usize = 256 << 20;
const MAX_BINARIES: usize = 512 << 20;
/// Minimum number of bytes that a block of symbols counts for: each takes time to read.
const LEAST_SYMBOLS: usize = 32 << 10;
/// Bytes that a function takes beside its name, and that a mapping or segment takes. A hostile file can have very many short ones.
const FUNCTION: usize = 64;
const ITEM: usize = 96;

/// How many bytes of a recording may still be kept, by kind of block.
#[derive(Clone, Debug)]
pub struct Budget {
    symbols: usize,
    mappings: usize,
    binaries: usize,
}

impl Default for Budget {
    /// The budget of a recording of which nothing is kept yet.
    fn default() -> Self {
        Self {
            symbols: MAX_SYMBOLS,
            mappings: MAX_MAPPINGS,
            binaries: MAX_BINARIES,
        }
    }
}

impl Budget {
    /// Whether `block` may be kept. If so, its bytes are subtracted.
    pub fn take(&mut self, block: &Block) -> bool {
        let contents = &block.contents;
        let size =
            |each, first| contents.len() + each * memchr::memchr_iter(first, contents).count();
        let (rest, length) = match block.kind {
            Some(Kind::Symbols) => {
                let size = size(FUNCTION, b'\n');
                (&mut self.symbols, size.max(LEAST_SYMBOLS))
            }
            // Each of them is an object of JSON.
            Some(Kind::Mappings) => (&mut self.mappings, size(ITEM, b'{')),
            // Each label has a colon at least.
            Some(Kind::Labels) => (&mut self.mappings, size(ITEM, b':')),
            // As for mappings. A line has two numbers, in a bracket.
            Some(Kind::Functions) => {
                let lines = size_of::<(u32, u32)>() * memchr::memchr_iter(b'[', contents).count();
                (&mut self.binaries, size(ITEM, b'{') + lines)
            }
            Some(Kind::GeneratedCode) => (&mut self.binaries, size(FUNCTION, b'\n')),
            Some(Kind::Binary) => {
                let segments = ITEM * memchr::memchr_iter(b'{', contents).count();
                (&mut self.binaries, size(FUNCTION, b'\n') + segments)
            }
            Some(
                Kind::Info
                | Kind::Samples
                | Kind::Details
                | Kind::Times
                | Kind::End
                | Kind::Kernel
                | Kind::Reset
                | Kind::Pause
                | Kind::Tasks
                | Kind::Exits,
            )
            | None => {
                return true;
            }
        };
        match rest.checked_sub(length) {
            Some(less) => {
                *rest = less;
                true
            }
            None => false,
        }
    }

    /// Gives back the bytes of all mappings, which the caller has dropped.
    pub fn give_mappings_back(&mut self) {
        self.mappings = MAX_MAPPINGS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: Kind, contents: Vec<u8>) -> Block {
        Block {
            kind: Some(kind),
            contents,
            length: 0,
            offset: 0,
        }
    }

    #[test]
    fn short_entries_are_charged_with_their_overhead() {
        let block = |kind, contents: &str| block(kind, contents.repeat(1 << 20).into_bytes());
        let kept = |block: &Block| {
            let mut budget = Budget::default();
            (0..100).take_while(|_| budget.take(block)).count()
        };
        assert_eq!(kept(&block(Kind::Symbols, "0 t a\n")), 2);
        assert_eq!(kept(&block(Kind::Mappings, "{},")), 2);
        assert_eq!(kept(&block(Kind::Binary, "0 0\n")), 7);
        assert_eq!(kept(&block(Kind::Binary, "{},")), 5);
    }

    #[test]
    fn kept_blocks_are_limited() {
        let block = |kind, length| block(kind, vec![0; length]);
        let mut budget = Budget::default();
        let symbols = block(Kind::Symbols, 1);
        for _ in 0..MAX_SYMBOLS / LEAST_SYMBOLS {
            assert!(budget.take(&symbols));
        }
        assert!(!budget.take(&symbols));
        assert!(budget.take(&block(Kind::Samples, 1)));
        let half = block(Kind::Mappings, MAX_MAPPINGS / 2 + 1);
        assert!(budget.take(&half));
        assert!(!budget.take(&half));
        assert!(budget.take(&block(Kind::Mappings, 1)));
        budget.give_mappings_back();
        assert!(budget.take(&half));
        assert!(budget.take(&block(Kind::Binary, 1)));
    }
}
