//! The results of the workload `port`. The layout is `struct port_results` in
//! image/virtio/results.h.

use std::fmt;
use std::ops::Range;

use kvmprof_demo_guest::{TruthError, i32_at, u32_at, u64_at};

use crate::IMAGE;

const STAGE_OFFSET: usize = 0;
const ALLOWED_OFFSET: u64 = 4;
const OUTCOMES_OFFSET: usize = 8;
const VCPUS_OFFSET: usize = 104;
const HZ_OFFSET: usize = 108;
const BUFFERS_OFFSET: usize = 112;
const LOST_OFFSET: usize = 120;
const TICKS_OFFSET: usize = 128;
const USER_OFFSET: usize = 256;
const ACCOUNT_OFFSET: usize = 296;
const RESULTS_BYTES: usize = ACCOUNT_OFFSET + ACCOUNT_BYTES;
const ACCOUNT_BYTES: usize = 88;
const KINDS: usize = 16;
/// The four processes, and one for all others.
const PROCESSES: usize = 5;

/// The workload's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stage {
    /// It waits for permission to start; this stage is allowed from the start.
    Start = 0,
    /// It has said hello and will open pcs.
    Connected = 1,
    /// It has pcs open.
    Open = 2,
    /// It has gathered, stopped pcs and read the rest.
    Gathered = 3,
    /// It has closed pcs, and the port.
    Closed = 4,
    /// It has failed; the outcomes have the step.
    Failed = 255,
}

impl Stage {
    fn from_number(number: u32) -> Option<Self> {
        [
            Self::Start,
            Self::Connected,
            Self::Open,
            Self::Gathered,
            Self::Closed,
            Self::Failed,
        ]
        .into_iter()
        .find(|stage| *stage as u32 == number)
    }
}

/// The steps of the workload, in the order of `enum step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Step {
    /// Opens the port and says hello.
    Hello,
    /// Opens a device that doesn't exist.
    UnknownDevice,
    /// Opens minor 1 of pcs.
    UnknownMinor,
    /// Opens status.
    Status,
    /// Opens processes.
    Processes,
    /// Reads from a handle that isn't open.
    ReadNothingOpen,
    /// Opens pcs.
    Open,
    /// Opens pcs a second time.
    OpenAgain,
    /// PCS_SETHZ with the highest possible rate.
    Faster,
    /// Carries out a command that pcs doesn't have.
    UnknownCommand,
    /// BUF_INCR by 1000.
    TooManyBuffers,
    /// BUF_INCR by 7.
    MoreBuffers,
    /// PROF_ALL.
    ProfAll,
    /// Reads, to the end of file.
    Read,
    /// PCS_STOP.
    Stop,
    /// PCS_GETSTAT.
    GetStat,
    /// Closes pcs.
    Close,
    /// Reads again.
    ReadClosed,
    /// Closes the port.
    PortClose,
}

/// The result of a step of the guest's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As expected.
    Done,
    /// With this errno of the host's.
    Errno(i32),
    /// No answer came.
    TimedOut,
    /// The device asked for a reset.
    NeedsReset,
    /// The host closed the port.
    Closed,
    /// The reply belonged to no request, or was too long.
    BadReply,
    /// There was no suitable virtio console.
    NoDevice,
    /// It wasn't tried.
    NotTried,
    /// An outcome number that the image doesn't use.
    Unknown(i32),
}

impl Outcome {
    pub(crate) fn from_number(number: i32) -> Self {
        match number {
            0 => Self::Done,
            1.. => Self::Errno(number),
            -1 => Self::TimedOut,
            -2 => Self::NeedsReset,
            -3 => Self::Closed,
            -4 => Self::BadReply,
            -5 => Self::NoDevice,
            -6 => Self::NotTried,
            _ => Self::Unknown(number),
        }
    }
}

/// The workload's results so far.
#[derive(Clone, PartialEq, Eq)]
pub struct PortResults {
    /// Its stage; `None` for a number that the image doesn't use.
    pub stage: Option<Stage>,
    /// vCPUs, by the reply to hello.
    pub vcpus: u32,
    /// The clock's rate in Hz, by the reply to hello.
    pub hz: u32,
    /// Buffers of pcs that were read.
    pub buffers: u64,
    /// Samples lost, by their headers.
    pub lost: u64,
    /// Ticks by type of record.
    pub ticks: [u64; KINDS],
    /// USER records of the processes 101, 102, 103 and 201, and of any other.
    pub user: [u64; PROCESSES],
    /// The result of PCS_GETSTAT after the end of file.
    pub account: [u8; ACCOUNT_BYTES],
    outcomes: [i32; Step::PortClose as usize + 1],
}

impl fmt::Debug for PortResults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PortResults")
            .field("stage", &self.stage)
            .field("outcomes", &self.outcomes)
            .field("buffers", &self.buffers)
            .field("lost", &self.lost)
            .field("ticks", &self.ticks)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The guest-physical addresses of the results, for [`PortResults::parse`].
///
/// # Errors
/// As [`kvmprof_demo_guest::Image::area`].
pub fn port_results_area() -> Result<Range<u64>, TruthError> {
    IMAGE.area("kvmprof_port_results")
}

/// The address and bytes to write into guest memory, so that the workload may leave `stage`.
///
/// # Errors
/// As [`port_results_area`].
pub fn allow_stage(stage: Stage) -> Result<(u64, [u8; 4]), TruthError> {
    let address = port_results_area()?.start + ALLOWED_OFFSET;
    Ok((address, (stage as u32).to_le_bytes()))
}

impl PortResults {
    /// Parses a copy of [`port_results_area`].
    ///
    /// # Errors
    /// The copy is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, TruthError> {
        let account = bytes
            .get(ACCOUNT_OFFSET..)
            .and_then(|rest| rest.first_chunk())
            .ok_or(TruthError::Short(bytes.len(), RESULTS_BYTES))?;
        Ok(Self {
            stage: Stage::from_number(u32_at(bytes, STAGE_OFFSET)),
            vcpus: u32_at(bytes, VCPUS_OFFSET),
            hz: u32_at(bytes, HZ_OFFSET),
            buffers: u64_at(bytes, BUFFERS_OFFSET),
            lost: u64_at(bytes, LOST_OFFSET),
            ticks: std::array::from_fn(|kind| u64_at(bytes, TICKS_OFFSET + 8 * kind)),
            user: std::array::from_fn(|process| u64_at(bytes, USER_OFFSET + 8 * process)),
            account: *account,
            outcomes: std::array::from_fn(|step| i32_at(bytes, OUTCOMES_OFFSET + 4 * step)),
        })
    }

    /// The result of a step.
    pub fn outcome(&self, step: Step) -> Outcome {
        Outcome::from_number(self.outcomes[step as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let area = port_results_area().unwrap();
        let mut bytes = vec![0; usize::try_from(area.end - area.start).unwrap()];
        assert_eq!(allow_stage(Stage::Open), Ok((area.start + 4, [2, 0, 0, 0])));
        bytes[0] = 3;
        bytes[OUTCOMES_OFFSET + 4] = 19;
        bytes[OUTCOMES_OFFSET + 8..OUTCOMES_OFFSET + 12].copy_from_slice(&[0xff; 4]);
        bytes[TICKS_OFFSET + 16] = 7;
        bytes[USER_OFFSET + 32] = 8;
        let results = PortResults::parse(&bytes).unwrap();
        assert_eq!(results.stage, Some(Stage::Gathered));
        assert_eq!(results.outcome(Step::Hello), Outcome::Done);
        assert_eq!(results.outcome(Step::UnknownDevice), Outcome::Errno(19));
        assert_eq!(results.outcome(Step::UnknownMinor), Outcome::TimedOut);
        assert_eq!((results.ticks[2], results.user[4]), (7, 8));
        bytes.pop();
        assert_eq!(
            PortResults::parse(&bytes),
            Err(TruthError::Short(RESULTS_BYTES - 1, RESULTS_BYTES))
        );
    }
}
