//! The nodes that every program of the guest may open, those of profil and pmc. Open files and requests on the wire are few; turns divide
//! them, so that no user keeps other users, or the other nodes, from them.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Request as WireRequest, device};
use kvmprof_abi::{pmc, profil};

use super::super::ioctl::{self, Step};
use super::super::turns::{Limits, Queue, Turn};
use super::super::{Inspection, Node, readiness};
use super::inspections::{BegunOperation, UninspectedCall};
use super::{Call, Environment, Forwarder, Pending, fail};
use crate::cuse::protocol::{self, Operation, Request};

/// Limits of the open files of these nodes together. The wire has 256 for all nodes.
const FILES: Limits = Limits {
    total: 96,
    of_one_user: 24,
};
/// Limits of the calls in progress, which includes inspections of callers. The wire has 256 unanswered requests for all nodes.
const CALLS: Limits = Limits {
    total: 32,
    of_one_user: 8,
};
/// The id of the superuser.
const SUPERUSER: u32 = 0;

/// An ioctl for kvmprof, without its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    pub file: u64,
    pub number: u32,
    pub argument: i64,
    /// Maximum number of bytes that the ioctl stores.
    pub limit: usize,
}

/// A call that has its turn, or waits for it.
#[derive(Debug)]
struct QueuedCall {
    call: Call,
    command: Command,
    /// The inspection that finds out its data; `None` if it has no data.
    inspection: Option<Inspection>,
}

/// The state of these nodes.
#[derive(Debug)]
pub(super) struct SharedNodes {
    opens: Queue<Call>,
    calls: Queue<QueuedCall>,
}

impl Default for SharedNodes {
    fn default() -> Self {
        Self {
            opens: Queue::new(FILES),
            calls: Queue::new(CALLS),
        }
    }
}

/// The command for kvmprof, and the inspection that it needs, of an ioctl on `file` whose memory has been fetched.
fn command_of(
    device: u16,
    file: u64,
    command: u32,
    data: &[u8],
    request: &Request<'_>,
) -> Result<(Command, Option<Inspection>), Errno> {
    let thread = request.thread;
    let (limit, inspection) = match (device, command) {
        (device::PROFIL, profil::PROFIL_CALL) => {
            let call = profil::Call::decode(data).ok_or(Errno::EINVAL)?;
            (0, Some(Inspection::ProfilCall { thread, call }))
        }
        (device::PROFIL, profil::PROFIL_GETSTAT) => (profil::Status::SIZE, None),
        (device::PMC, pmc::PMC_CALL) => {
            let call = pmc::Call::decode(data).ok_or(Errno::EINVAL)?;
            let is_superuser = request.user == SUPERUSER;
            let inspection = Inspection::PmcCall {
                thread,
                is_superuser,
                call,
            };
            (pmc::Call::SIZE, Some(inspection))
        }
        // This command returns data of all processes.
        (device::PMC, pmc::PMC_ACCOUNT) => return Err(Errno::EACCES),
        _ => return Err(Errno::EINVAL),
    };
    let command = Command {
        file,
        number: command,
        argument: 0,
        limit,
    };
    Ok((command, inspection))
}

impl Forwarder {
    /// Whether every program may open the node.
    pub(super) fn is_for_everybody(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(Node::is_for_everybody)
    }

    /// Acts on a request of a node for everybody. A request that needs a turn gets it in [`give_turns`](Self::give_turns).
    pub(super) fn request_of_everybody(
        &mut self,
        node: usize,
        request: &Request<'_>,
        environment: &mut impl Environment,
    ) {
        let unique = request.unique;
        let call = Call { node, unique };
        match request.operation {
            Operation::Open if self.connected => self.everybody.opens.add(request.user, call),
            Operation::Ioctl { .. } => self.ioctl_of_everybody(call, request, environment),
            Operation::Poll { .. } => {
                environment.answer(node, &protocol::polled(unique, readiness::ALWAYS));
            }
            // There is nothing to read: the results are in the process's own memory.
            Operation::Read { .. } | Operation::Write { .. } => {
                fail(call, Errno::EINVAL, environment);
            }
            Operation::Interrupt { unique } => {
                self.interrupt_everybody(Call { node, unique }, environment);
            }
            _ => self.act(node, request, environment),
        }
    }

    fn ioctl_of_everybody(
        &mut self,
        call: Call,
        request: &Request<'_>,
        environment: &mut impl Environment,
    ) {
        let Operation::Ioctl {
            file,
            command,
            argument,
            data,
            out_size,
            compat,
        } = request.operation
        else {
            return;
        };
        let device = self.device(call.node);
        if compat && device == device::PROFIL {
            // The program counters and pointers of a 32-bit program have another size.
            return fail(call, Errno(libc::EOPNOTSUPP), environment);
        }
        if let Step::Fetch { reads, stores } =
            ioctl::step(device, command, argument, data, out_size)
        {
            let answer = protocol::ioctl_retry(call.unique, reads, stores);
            environment.answer(call.node, &answer);
            return;
        }
        match command_of(device, file, command, data, request) {
            Ok((command, inspection)) => {
                let waiting = QueuedCall {
                    call,
                    command,
                    inspection,
                };
                self.everybody.calls.add(request.user, waiting);
            }
            Err(errno) => fail(call, errno, environment),
        }
    }

    /// Continues the calls whose turn it is.
    pub(super) fn give_turns(&mut self, environment: &mut impl Environment) {
        while let Some((turn, call)) = self.everybody.opens.next() {
            self.open(call, Some(turn), environment);
        }
        while let Some((turn, waiting)) = self.everybody.calls.next() {
            let QueuedCall {
                call,
                command,
                inspection,
            } = waiting;
            match inspection {
                Some(inspection) => {
                    let operation = BegunOperation::Command(command);
                    let beginning = UninspectedCall { call, operation };
                    self.inspect(beginning, Some(turn), inspection, environment);
                }
                None => self.send_command(call, command, &[], Some(turn), environment),
            }
        }
    }

    /// Sends a command with its data. The turn of a call of a node for everybody ends with the reply.
    pub(super) fn send_command(
        &mut self,
        call: Call,
        command: Command,
        data: &[u8],
        turn: Option<Turn>,
        environment: &mut impl Environment,
    ) {
        let handle = match self.handle(command.file) {
            Ok(handle) => handle,
            Err(errno) => return fail(call, errno, environment),
        };
        let request = WireRequest::Ioctl {
            handle,
            command: command.number,
            argument: command.argument,
            limit: u32::try_from(command.limit).unwrap_or(u32::MAX),
            data,
        };
        let pending = Pending::Ioctl {
            call,
            limit: command.limit,
            _turn: turn,
        };
        self.send(pending, &request, environment);
    }

    /// Interrupts a call, whose caller has got a signal. A call that waits for a turn or an inspection fails at once, because the wait may
    /// never end; kvmprof answers soon.
    fn interrupt_everybody(&mut self, call: Call, environment: &mut impl Environment) {
        let SharedNodes { opens, calls } = &mut self.everybody;
        if !self.inspections.take_if(|begun| *begun == call).is_empty()
            || !opens.take_if(|waiting| *waiting == call).is_empty()
            || !calls.take_if(|waiting| waiting.call == call).is_empty()
        {
            fail(call, Errno::EINTR, environment);
        }
    }

    /// Answers those who wait here, because the connection to kvmprof has ended.
    pub(super) fn lose_everybody(&mut self, environment: &mut impl Environment) {
        for call in self.everybody.opens.take_if(|_| true) {
            fail(call, Errno::ENXIO, environment);
        }
        for waiting in self.everybody.calls.take_if(|_| true) {
            fail(waiting.call, Errno::EIO, environment);
        }
    }

    /// Forgets those who wait here for a node that has ended.
    pub(super) fn forget_everybody(&mut self, node: usize) {
        let SharedNodes { opens, calls } = &mut self.everybody;
        opens.take_if(|call| call.node == node);
        calls.take_if(|waiting| waiting.call.node == node);
    }
}
