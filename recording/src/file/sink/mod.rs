//! Where the blocks of a recording go.

mod client;
mod file;
mod symbol_text;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;

use super::{Account, Block, Kind, RecordingInfo, SampleBlock, header};

pub use client::ClientSink;
pub use file::{END_ROOM, FileOptions, FileSink, RecordingFailure};
pub use symbol_text::SymbolText;

/// A block on its way into a recording.
#[derive(Clone, Debug)]
pub enum Part {
    /// Ticks.
    Samples(SampleBlock),
    /// Looks at the guest's tasks, as [`TasksEncoder`](super::TasksEncoder) makes them.
    Looks(Vec<u8>),
    /// Functions of the guest's kernel or its modules.
    Symbols(SymbolText),
    /// A whole block, as [`Block::encode`] makes it.
    Encoded(Arc<[u8]>),
    /// The account of all ticks, which comes last.
    End(Account),
}

impl Part {
    /// About how many bytes it takes while it waits.
    fn size(&self) -> usize {
        match self {
            Self::Samples(block) => block.bytes.len() + block.details.len() + block.times.len(),
            Self::Looks(bytes) => bytes.len(),
            Self::Symbols(text) => text.text().len(),
            Self::Encoded(bytes) => bytes.len(),
            Self::End(_) => 0,
        }
    }

    /// The block. `None` when it would be too long, or has nothing in it.
    fn encode(&self) -> Option<Encoded> {
        match self {
            Self::Samples(block) if block.bytes.is_empty() => None,
            Self::Samples(block) => encode_samples(block).map(Encoded::Own),
            Self::Looks(bytes) => Block::encode(Kind::Tasks, bytes).map(Encoded::Own),
            Self::Symbols(text) => text.block().map(Encoded::Shared),
            Self::Encoded(block) => Some(Encoded::Shared(Arc::clone(block))),
            Self::End(account) => {
                let json = serde_json::to_vec(account).ok()?;
                Block::encode(Kind::End, &json).map(Encoded::Own)
            }
        }
    }

    /// How many samples and idle ticks are in it.
    fn counts(&self) -> (u64, u64) {
        match self {
            Self::Samples(block) => (block.samples, block.idle),
            _ => (0, 0),
        }
    }
}

/// A block as it is in a recording.
#[derive(Debug)]
enum Encoded {
    /// Of one recording.
    Own(Vec<u8>),
    /// Of any number of recordings.
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

/// The block, behind those of its times and of its details if it has any.
fn encode_samples(block: &SampleBlock) -> Option<Vec<u8>> {
    let mut bytes = Block::encode(Kind::Times, &block.times)?;
    if !block.details.is_empty() {
        bytes.extend(Block::encode(Kind::Details, &block.details)?);
    }
    bytes.extend(Block::encode(Kind::Samples, &block.bytes)?);
    Some(bytes)
}

/// What became of the ticks that a sink was given; the rest waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Samples that have arrived.
    pub samples: u64,
    /// Idle ticks that have arrived.
    pub idle: u64,
    /// Samples and idle ticks that will not arrive any more.
    pub refused: u64,
}

/// Takes the blocks of one recording, in their order, and never makes the caller wait before
/// [`finish`](Self::finish).
pub trait Sink {
    /// How many bytes may wait when a block comes that is about many samples, such as a file's functions.
    const CAPACITY: usize;

    /// Takes `part`, unless more than `limit` bytes would wait then.
    ///
    /// # Errors
    /// There is no room: `part` comes back.
    fn put(&mut self, part: Part, limit: usize) -> Result<(), Part>;

    /// Bytes that wait, about.
    fn waiting(&self) -> usize;

    /// What became of the ticks so far.
    fn delivered(&self) -> Delivered;

    /// Whether it can still deliver anything.
    fn is_open(&self) -> bool;

    /// Nothing more comes.
    fn finish(&mut self);
}

/// The bytes that a recording begins with: its header, and `info`.
fn beginning(info: &RecordingInfo) -> Vec<u8> {
    let info = serde_json::to_vec(info).unwrap_or_default();
    let info = Block::encode(Kind::Info, &info).unwrap_or_default();
    [header().as_slice(), &info].concat()
}
