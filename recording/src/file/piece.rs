//! The decoded contents of a block.

use serde::de::DeserializeOwned;

use super::block::Kind;
use super::exit_intervals;
use super::samples::{BlockNumbers, DecodedBlock, decode_with};
use super::task_looks;
use super::times::{self, BlockTimes};
use super::{
    Account, Binary, GeneratedCode, KernelInfo, LanguageFunctions, PauseInfo, ProcessLabels,
    ProcessMappings, ReadError, RecordingInfo, ResetInfo,
};
use crate::Ticks;
use crate::exits::ExitInterval;
use crate::tasks::TaskLook;

/// The decoded contents of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The recording's properties.
    Info(RecordingInfo),
    /// The guest's kernel.
    Kernel(KernelInfo),
    /// A restart of the guest.
    Reset(ResetInfo),
    /// A pause of the guest, or its end.
    Pause(PauseInfo),
    /// Functions of the guest's kernel or its modules, in the form of `/proc/kallsyms`.
    Symbols(String),
    /// The executable mappings of an address space.
    Mappings(ProcessMappings),
    /// Labels of a process.
    Labels(ProcessLabels),
    /// Functions of languages.
    Functions(LanguageFunctions),
    /// Names of code that a process generates.
    GeneratedCode(GeneratedCode),
    /// A file that code was executed from.
    Binary(Binary),
    /// Samples.
    Samples(Samples),
    /// Details of some of the samples in the next block of samples.
    Details(Details),
    /// The times of the ticks in the next block of samples.
    Times(BlockTimes),
    /// Looks at the guest's tasks.
    Looks(Looks),
    /// Exits of the guest's vCPUs.
    Exits(PackedExits),
    /// The account of all ticks. It is the last block.
    End(Account),
}

/// A block of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    bytes: Vec<u8>,
    offset: u64,
    /// What another thread has made of it.
    pub(super) decoded: Option<DecodedBlock>,
}

/// A block of details of some of the samples in the next block of samples, which isn't decoded yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details(Vec<u8>);

impl Samples {
    /// Hands each run of ticks and the frames of its sample's stack to `each`.
    ///
    /// # Errors
    /// The block is invalid; what came before that has been delivered.
    pub fn read(&self, mut each: impl FnMut(&Ticks, &[u64])) -> Result<(), ReadError> {
        let each = |ticks: &Ticks, frames: &[u64], _| each(ticks, frames);
        self.read_with(&Details::default(), each)
    }

    /// As [`Self::read`], with the `details` that came before this block, and the numbers of the sample's thread and stack in the block.
    ///
    /// # Errors
    /// As [`Self::read`], for both.
    pub fn read_with(
        &self,
        details: &Details,
        each: impl FnMut(&Ticks, &[u64], BlockNumbers),
    ) -> Result<(), ReadError> {
        let read = match &self.decoded {
            Some(decoded) => decoded.read(&details.0, each),
            None => decode_with(&self.bytes, &details.0, each),
        };
        read.ok_or(ReadError::Damaged {
            offset: self.offset,
            what: "its samples make no sense",
        })
    }
}

/// The blocks that are passed on while a recording is read, and not kept.
pub(super) enum Body<'a> {
    /// The times of the ticks that follow.
    Times(BlockTimes),
    /// Ticks.
    Samples(&'a Samples),
    /// Details of the samples that follow.
    Details(Details),
    /// Looks at the guest's tasks.
    Looks(&'a Looks),
    /// Exits of the guest's vCPUs.
    Exits(&'a PackedExits),
}

/// A block of looks at the guest's tasks that isn't decoded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looks {
    bytes: Vec<u8>,
    offset: u64,
}

impl Looks {
    /// Hands each look to `each`.
    ///
    /// # Errors
    /// The block is invalid; what came before that has been delivered.
    pub fn read(&self, each: impl FnMut(&TaskLook)) -> Result<(), ReadError> {
        task_looks::decode(&self.bytes, each).ok_or(ReadError::Damaged {
            offset: self.offset,
            what: "its looks at tasks make no sense",
        })
    }
}

/// The exits of an interval that aren't decoded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedExits {
    bytes: Vec<u8>,
    offset: u64,
}

impl PackedExits {
    /// The interval.
    ///
    /// # Errors
    /// The block is invalid.
    pub fn read(&self) -> Result<ExitInterval, ReadError> {
        exit_intervals::decode(&self.bytes).ok_or(ReadError::Damaged {
            offset: self.offset,
            what: "its exits make no sense",
        })
    }
}

impl Piece {
    /// Decodes the `contents` of a block of this `kind` at `offset`.
    ///
    /// # Errors
    /// The contents are invalid.
    pub(super) fn decode(kind: Kind, contents: Vec<u8>, offset: u64) -> Result<Self, &'static str> {
        Ok(match kind {
            Kind::Info => Self::Info(json(
                &contents,
                "the properties of the recording are no JSON of that form",
            )?),
            Kind::Kernel => Self::Kernel(json(&contents, "its kernel is no JSON of that form")?),
            Kind::Reset => Self::Reset(json(&contents, "its reset is no JSON of that form")?),
            Kind::Pause => Self::Pause(json(&contents, "its pause is no JSON of that form")?),
            Kind::Symbols => {
                Self::Symbols(String::from_utf8(contents).map_err(|_| "its symbols are no text")?)
            }
            Kind::Mappings => {
                Self::Mappings(json(&contents, "its mappings are no JSON of that form")?)
            }
            Kind::Labels => Self::Labels(json(&contents, "its labels are no JSON of that form")?),
            Kind::Functions => {
                Self::Functions(json(&contents, "its functions are no JSON of that form")?)
            }
            Kind::GeneratedCode => Self::GeneratedCode(
                GeneratedCode::decode(contents)
                    .ok_or("its names of generated code are not of that form")?,
            ),
            Kind::Binary => {
                Self::Binary(Binary::decode(contents).ok_or("its file is not of that form")?)
            }
            Kind::Samples => Self::Samples(Samples {
                bytes: contents,
                offset,
                decoded: None,
            }),
            Kind::Details => Self::Details(Details(contents)),
            Kind::Times => Self::Times(times::decode(&contents).ok_or("its times make no sense")?),
            Kind::Tasks => Self::Looks(Looks {
                bytes: contents,
                offset,
            }),
            Kind::Exits => Self::Exits(PackedExits {
                bytes: contents,
                offset,
            }),
            Kind::End => Self::End(json(&contents, "its account is no JSON of that form")?),
        })
    }
}

/// A line of JSON, and the text that follows it.
pub(super) fn json_and_text<T: DeserializeOwned>(contents: Vec<u8>) -> Option<(T, String)> {
    let mut text = String::from_utf8(contents).ok()?;
    let (json, rest) = text.split_once('\n')?;
    let json = serde_json::from_str(json).ok()?;
    let begin = text.len() - rest.len();
    text.drain(..begin);
    Some((json, text))
}

fn json<T: DeserializeOwned>(bytes: &[u8], wrong: &'static str) -> Result<T, &'static str> {
    serde_json::from_slice(bytes).map_err(|_| wrong)
}
