//! Commands of pcs that name processes. A program in a pid namespace of its own has other pids for them than kvmprof.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{self, PROF_GROUP, PROF_LIST};
use kvmprof_abi::wire::device;

use super::super::{Inspection, InspectionResult, PidKind};
use super::everybody::Command;
use super::inspections::{BegunOperation, UninspectedCall};
use super::{Call, Environment, Forwarder, fail};

/// Bytes of a pid, and of the count before a list of pids.
const NUMBER: usize = 4;

/// A command with valid pids.
#[derive(Clone, Copy, Debug)]
pub(super) struct PidCommand {
    file: u64,
    command: u32,
    kind: PidKind,
    count: usize,
    pids: [i32; pcs::MAX_LIST],
}

impl PidCommand {
    /// The command on this file with this argument; `None` if it names no processes, or if kvmprof refuses it anyway.
    pub fn of(device: u16, file: u64, command: u32, argument: i64, data: &[u8]) -> Option<Self> {
        let mut pids = [0; pcs::MAX_LIST];
        let (kind, count) = match (device, command) {
            (device::PCS, PROF_GROUP) => {
                *pids.first_mut()? = i32::try_from(argument).ok()?;
                (PidKind::Group, 1)
            }
            (device::PCS, PROF_LIST) => {
                let (count, list) = data.split_first_chunk::<NUMBER>()?;
                let count = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
                let (list, _) = list.as_chunks::<NUMBER>();
                let list = list.get(..count)?;
                for (pid, number) in pids.get_mut(..count)?.iter_mut().zip(list) {
                    *pid = i32::from_ne_bytes(*number);
                }
                (PidKind::Process, count)
            }
            _ => return None,
        };
        let named = pids.get(..count)?;
        let least = match kind {
            PidKind::Process => 1,
            PidKind::Group => 0,
        };
        (count > 0 && named.iter().all(|pid| *pid >= least)).then_some(Self {
            file,
            command,
            kind,
            count,
            pids,
        })
    }
}

impl Forwarder {
    /// Starts an inspection of the thread that has made the call, to translate the pids into those that kvmprof knows.
    pub(super) fn begin_pid_command(
        &mut self,
        call: Call,
        thread: u32,
        begun: PidCommand,
        environment: &mut impl Environment,
    ) {
        let beginning = UninspectedCall {
            call,
            operation: BegunOperation::PidCommand(begun),
        };
        let inspection = Inspection::Pids {
            thread,
            kind: begun.kind,
            count: begun.count,
            pids: begun.pids,
        };
        self.inspect(beginning, None, inspection, environment);
    }

    /// Sends a command with the translated pids.
    pub(super) fn send_pid_command(
        &mut self,
        call: Call,
        begun: PidCommand,
        found: InspectionResult,
        environment: &mut impl Environment,
    ) {
        let PidCommand {
            file,
            command,
            kind,
            count,
            ..
        } = begun;
        let pids = match found.unwrap_or(Err(Errno::EIO)) {
            Ok(pids) => pids,
            Err(errno) => return fail(call, errno, environment),
        };
        let count = i32::try_from(count).unwrap_or_default().to_ne_bytes();
        let list = [count.as_slice(), &pids].concat();
        let (argument, data) = match kind {
            PidKind::Process => (0, list.as_slice()),
            PidKind::Group => {
                let group = pids.first_chunk().copied().map_or(0, i32::from_ne_bytes);
                (i64::from(group), [].as_slice())
            }
        };
        let command = Command {
            file,
            number: command,
            argument,
            limit: 0,
        };
        self.send_command(call, command, data, None, environment);
    }
}
