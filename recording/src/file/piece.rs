//! What a block says.

use serde::de::DeserializeOwned;

use super::block::Kind;
use super::samples::decode_with;
use super::task_looks;
use super::times::{self, BlockTimes};
use super::{Account, Binary, KernelInfo, ProcessMappings, ReadError, RecordingInfo, ResetInfo};
use crate::Ticks;
use crate::tasks::TaskLook;

/// What one block says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What the recording is about.
    Info(RecordingInfo),
    /// The guest's kernel.
    Kernel(KernelInfo),
    /// A restart of the guest.
    Reset(ResetInfo),
    /// Functions of the guest's kernel or its modules, in the form of `/proc/kallsyms`.
    Symbols(String),
    /// The executable mappings of an address space.
    Mappings(ProcessMappings),
    /// A file that code was executed from.
    Binary(Binary),
    /// Samples.
    Samples(Samples),
    /// What is known of some of the samples in the next block of them beyond what that says.
    Details(Details),
    /// When the ticks of the next block of samples were.
    Times(BlockTimes),
    /// Looks at the guest's tasks.
    Looks(Looks),
    /// The account of all ticks: nothing follows.
    End(Account),
}

/// A block of samples, as the format has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    bytes: Vec<u8>,
    offset: u64,
}

/// What is known of some of the samples in the next block of them beyond what that says, as the format has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details(Vec<u8>);

impl Samples {
    /// Hands each run of ticks and the frames of its sample's stack to `each`.
    ///
    /// # Errors
    /// The block makes no sense; what came before that has been handed over.
    pub fn read(&self, each: impl FnMut(&Ticks, &[u64])) -> Result<(), ReadError> {
        self.read_with(&Details::default(), each)
    }

    /// As [`Self::read`], with the `details` that came before this block.
    ///
    /// # Errors
    /// As [`Self::read`], for both.
    pub fn read_with(
        &self,
        details: &Details,
        each: impl FnMut(&Ticks, &[u64]),
    ) -> Result<(), ReadError> {
        decode_with(&self.bytes, &details.0, each).ok_or(ReadError::Damaged {
            offset: self.offset,
            what: "its samples make no sense",
        })
    }
}

/// What is read as it comes, and not kept.
pub(super) enum Body<'a> {
    /// When those that follow were.
    Times(BlockTimes),
    /// Ticks.
    Samples(&'a Samples),
    /// What is known of those that follow.
    Details(Details),
    /// Looks at the guest's tasks.
    Looks(&'a Looks),
}

/// A block of looks at the guest's tasks, as the format has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looks {
    bytes: Vec<u8>,
    offset: u64,
}

impl Looks {
    /// Hands each look to `each`.
    ///
    /// # Errors
    /// The block makes no sense; what came before that has been handed over.
    pub fn read(&self, each: impl FnMut(&TaskLook)) -> Result<(), ReadError> {
        task_looks::decode(&self.bytes, each).ok_or(ReadError::Damaged {
            offset: self.offset,
            what: "its looks at tasks make no sense",
        })
    }
}

impl Piece {
    /// What a block of `kind` at `offset` says that has these `contents`.
    ///
    /// # Errors
    /// It makes no sense; the result says why.
    pub(super) fn decode(kind: Kind, contents: Vec<u8>, offset: u64) -> Result<Self, &'static str> {
        Ok(match kind {
            Kind::Info => Self::Info(json(
                &contents,
                "the properties of the recording are no JSON of that form",
            )?),
            Kind::Kernel => Self::Kernel(json(&contents, "its kernel is no JSON of that form")?),
            Kind::Reset => Self::Reset(json(&contents, "its reset is no JSON of that form")?),
            Kind::Symbols => {
                Self::Symbols(String::from_utf8(contents).map_err(|_| "its symbols are no text")?)
            }
            Kind::Mappings => {
                Self::Mappings(json(&contents, "its mappings are no JSON of that form")?)
            }
            Kind::Binary => {
                Self::Binary(Binary::decode(contents).ok_or("its file is not of that form")?)
            }
            Kind::Samples => Self::Samples(Samples {
                bytes: contents,
                offset,
            }),
            Kind::Details => Self::Details(Details(contents)),
            Kind::Times => Self::Times(times::decode(&contents).ok_or("its times make no sense")?),
            Kind::Tasks => Self::Looks(Looks {
                bytes: contents,
                offset,
            }),
            Kind::End => Self::End(json(&contents, "its account is no JSON of that form")?),
        })
    }
}

fn json<T: DeserializeOwned>(bytes: &[u8], wrong: &'static str) -> Result<T, &'static str> {
    serde_json::from_slice(bytes).map_err(|_| wrong)
}
