//! Guest memory by blocks: what a sample needs is asked for at once, and each block is read once.

use vm_memory::GuestAddress;

use super::shared::Shared;

/// Bytes of a block of guest memory. It begins at a multiple of its length.
pub const BLOCK_BYTES: usize = 512;
/// Maximum number of blocks that are read at once.
pub const MAX_BLOCKS: usize = 128;
/// Words of the bits that tell which of these can't be read.
pub const UNREAD_WORDS: usize = MAX_BLOCKS / 64;

/// The blocks that can't be read of those that were asked for, each by a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreadBlocks(pub(super) [u64; UNREAD_WORDS]);

impl UnreadBlocks {
    /// Whether block number `index` can't be read.
    pub fn has(&self, index: usize) -> bool {
        let word = self.0.get(index / 64).copied();
        word.is_none_or(|word| word >> (index % 64) & 1 == 1)
    }

    /// Notes that block number `index` can't be read.
    pub fn note(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }
}

/// A block of guest memory that was read for a sample.
#[derive(Clone, Copy, Debug)]
struct Block {
    address: GuestAddress,
    is_readable: bool,
    /// Whether it was needed.
    is_used: bool,
}

/// The memory that was read for a sample: while the vCPU stands still, or later.
#[derive(Debug, Default)]
pub struct BlockCache {
    /// Whether memory is read for a sample.
    pub is_open: bool,
    /// Whether the blocks that it begins with haven't been asked for: the vCPU doesn't stand still, and nothing was read so far.
    pub is_empty: bool,
    blocks: Vec<Block>,
    /// The bytes of the blocks.
    bytes: Vec<u8>,
    /// Whether more blocks were needed than there may be.
    is_full: bool,
    /// The blocks that the next sample begins with: those that the last one needed.
    pub next: Vec<GuestAddress>,
}

impl BlockCache {
    /// Begins a sample whose blocks haven't been asked for.
    pub fn begin(&mut self) {
        self.clear();
        (self.is_open, self.is_empty) = (true, true);
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.bytes.clear();
        self.is_full = false;
    }

    /// Takes the blocks at `addresses`, which are in the data of `shared` but for the `unread` ones, as the only ones.
    pub fn fill(&mut self, addresses: &[GuestAddress], unread: &UnreadBlocks, shared: &Shared) {
        self.clear();
        let blocks = addresses.iter().enumerate().map(|(index, address)| Block {
            address: *address,
            is_readable: !unread.has(index),
            is_used: false,
        });
        self.blocks.extend(blocks);
        self.bytes.resize(addresses.len() * BLOCK_BYTES, 0);
        shared.data(0, &mut self.bytes);
    }

    /// Whether there may be another block. It is noted if there may be none.
    pub fn has_room(&mut self) -> bool {
        self.is_full |= self.blocks.len() >= MAX_BLOCKS;
        !self.is_full
    }

    /// Adds a block that was needed, and returns its number.
    pub fn push(&mut self, address: GuestAddress, is_readable: bool, bytes: &[u8]) -> usize {
        self.blocks.push(Block {
            address,
            is_readable,
            is_used: true,
        });
        self.bytes.extend_from_slice(bytes);
        self.blocks.len() - 1
    }

    /// Ends a sample. The next one begins with what this one has needed, unless that was nothing or very much: then it was not like others.
    pub fn end(&mut self) {
        self.is_open = false;
        if !self.is_full && !std::mem::take(&mut self.is_empty) {
            let used = self.blocks.iter().filter(|block| block.is_used);
            self.next.clear();
            self.next.extend(used.map(|block| block.address));
        }
    }

    /// The number of the block at `address`; `None` if it wasn't read, `Some(None)` if it can't be read.
    pub fn find(&mut self, address: GuestAddress) -> Option<Option<usize>> {
        let mut blocks = self.blocks.iter_mut().enumerate();
        let (index, block) = blocks.find(|(_, block)| block.address == address)?;
        block.is_used = true;
        Some(block.is_readable.then_some(index))
    }

    /// The bytes of block number `index`; `None` if it can't be read.
    pub fn block(&self, index: usize) -> Option<&[u8]> {
        let begin = index * BLOCK_BYTES;
        self.blocks.get(index)?.is_readable.then_some(())?;
        self.bytes.get(begin..begin + BLOCK_BYTES)
    }
}
