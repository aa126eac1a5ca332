//! The sinks of a recording's blocks.

mod client;
mod file;
mod symbol_text;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;

use super::{Account, Block, Kind, RecordingInfo, SampleBlock, header};

pub use client::ClientSink;
pub use file::{END_ROOM, FileOptions, FileSink, RecordingFailure, RecordingFile};
pub use symbol_text::SymbolText;

/// A block that is to be added to a recording.
#[derive(Clone, Debug)]
pub enum QueuedBlock {
    /// Ticks.
    Samples(SampleBlock),
    /// Looks at the guest's tasks, made by [`TasksEncoder`](super::TasksEncoder).
    Looks(Vec<u8>),
    /// Functions of the guest's kernel or its modules.
    Symbols(SymbolText),
    /// A whole block, made by [`Block::encode`].
    Encoded(Arc<[u8]>),
    /// The account of all ticks, which comes last.
    End(Account),
}

impl QueuedBlock {
    /// Approximate size in memory while it waits, in bytes.
    fn size(&self) -> usize {
        match self {
            Self::Samples(block) => block.bytes.len() + block.details.len() + block.times.len(),
            Self::Looks(bytes) => bytes.len(),
            Self::Symbols(text) => text.text().len(),
            Self::Encoded(bytes) => bytes.len(),
            Self::End(_) => 0,
        }
    }

    /// The block. `None` when it would be too long, or is empty.
    fn encode(&self) -> Option<Encoded> {
        match self {
            Self::Samples(block) if block.bytes.is_empty() => None,
            Self::Samples(block) => block.to_blocks().map(Encoded::Own),
            Self::Looks(bytes) => Block::encode(Kind::Tasks, bytes).map(Encoded::Own),
            Self::Symbols(text) => text.block().map(Encoded::Shared),
            Self::Encoded(block) => Some(Encoded::Shared(Arc::clone(block))),
            Self::End(account) => account.to_block().map(Encoded::Own),
        }
    }

    /// The numbers of samples and of idle ticks in it.
    fn counts(&self) -> (u64, u64) {
        match self {
            Self::Samples(block) => (block.samples, block.idle),
            _ => (0, 0),
        }
    }
}

/// An encoded block.
#[derive(Debug)]
enum Encoded {
    /// A block of one recording.
    Own(Vec<u8>),
    /// A block that any number of recordings share.
    Shared(Arc<[u8]>),
}

impl Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// What became of the ticks that a sink got. The others still wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The number of samples that have arrived.
    pub samples: u64,
    /// The number of idle ticks that have arrived.
    pub idle: u64,
    /// The number of samples and idle ticks that won't arrive any more.
    pub refused: u64,
}

/// Takes the blocks of one recording, in their order, and never makes the caller wait before
/// [`finish`](Self::finish).
pub trait Sink {
    /// Maximum number of bytes that may wait when a block comes that many samples refer to, such as a file's functions.
    const CAPACITY: usize;

    /// Takes `part`, unless more than `limit` bytes would wait afterwards.
    ///
    /// # Errors
    /// It doesn't fit. The error is `part`.
    fn put(&mut self, part: QueuedBlock, limit: usize) -> Result<(), QueuedBlock>;

    /// Approximate number of bytes that wait.
    fn waiting(&self) -> usize;

    /// What became of the ticks so far.
    fn delivered(&self) -> Delivered;

    /// Whether it can still deliver blocks.
    fn is_open(&self) -> bool;

    /// Ends the recording: no more parts come.
    fn finish(&mut self);
}

/// The first bytes of a recording: its header, and `info`.
fn beginning(info: &RecordingInfo) -> Vec<u8> {
    [header().as_slice(), &info.to_block().unwrap_or_default()].concat()
}
