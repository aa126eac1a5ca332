//! The file that a recording is kept in; `FORMAT.md` describes it.
//!
//! A file is a header and blocks, each with its length and checksum, that are only ever appended: whatever cuts
//! it off, all blocks before that are good.

mod block;
mod error;
mod facts;
mod guest;
mod reader;
mod samples;
mod varint;

pub use block::{Block, HEADER, Kind, MAGIC, MAX_BLOCK, VERSION, header};
pub use error::FileError;
pub use facts::{Account, Facts, Stacks};
pub use guest::{
    Binary, BinaryFacts, BinaryFunction, KernelFacts, Mapping, ProcessMappings, Segment,
    address_space_key,
};
pub use reader::{Contents, Observer, Recording, Unobserved};
pub use samples::{SampleBlock, SamplesEncoder, decode as decode_samples};
