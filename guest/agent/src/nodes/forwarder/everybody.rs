//! The nodes that every program of the guest may open, those of profil and pmc. Open files and requests on the wire are few; turns divide
//! them, so that no user keeps other users, or the other nodes, from them.

use std::collections::HashMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Request as WireRequest, device};
use kvmprof_abi::{pmc, profil};

use super::super::ioctl::{self, Step};
use super::super::readiness;
use super::super::turns::{Limits, Queue, Turn};
use super::super::{Look, Node, WholeWrite};
use super::{Call, Environment, Forwarder, Pending, fail};
use crate::cuse::protocol::{self, Operation, Request};

/// Limits of the open files of these nodes together. The wire has 256 for all nodes.
const FILES: Limits = Limits {
    total: 96,
    of_one_user: 24,
};
/// Limits of the calls in progress, which includes looks at callers. The wire has 256 unanswered requests for all nodes.
const CALLS: Limits = Limits {
    total: 32,
    of_one_user: 8,
};
/// The id of the superuser.
const SUPERUSER: u32 = 0;

/// An ioctl for kvmprof, without its data.
#[derive(Clone, Copy, Debug)]
struct Command {
    number: u32,
    /// Maximum number of bytes that the ioctl stores.
    limit: usize,
}

/// A call that has its turn, or waits for it.
#[derive(Debug)]
struct Waiting {
    call: Call,
    file: u64,
    command: Command,
    /// The look that finds out its data; `None` if it has no data.
    look: Option<Look>,
}

/// A call during the look at its caller.
#[derive(Debug)]
struct Looked {
    call: Call,
    file: u64,
    command: Command,
}

/// The state of these nodes.
#[derive(Debug)]
pub(super) struct Everybody {
    opens: Queue<Call>,
    calls: Queue<Waiting>,
    /// By the number of the look. The turn ends with the look, even if nobody waits for the result any more.
    looks: HashMap<u64, (Turn, Option<Looked>)>,
}

impl Default for Everybody {
    fn default() -> Self {
        Self {
            opens: Queue::new(FILES),
            calls: Queue::new(CALLS),
            looks: HashMap::new(),
        }
    }
}

/// The command for kvmprof, and the look that it needs, of an ioctl whose memory has been fetched.
fn command_of(
    device: u16,
    command: u32,
    data: &[u8],
    request: &Request<'_>,
) -> Result<(Command, Option<Look>), Errno> {
    let thread = request.thread;
    let (limit, look) = match (device, command) {
        (device::PROFIL, profil::PROFIL_CALL) => {
            let call = profil::Call::decode(data).ok_or(Errno::EINVAL)?;
            (0, Some(Look::ProfilCall { thread, call }))
        }
        (device::PROFIL, profil::PROFIL_GETSTAT) => (profil::Status::SIZE, None),
        (device::PMC, pmc::PMC_CALL) => {
            let call = pmc::Call::decode(data).ok_or(Errno::EINVAL)?;
            let is_superuser = request.user == SUPERUSER;
            let look = Look::PmcCall {
                thread,
                is_superuser,
                call,
            };
            (pmc::Call::SIZE, Some(look))
        }
        // This command returns data of all processes.
        (device::PMC, pmc::PMC_ACCOUNT) => return Err(Errno::EACCES),
        _ => return Err(Errno::EINVAL),
    };
    let number = command;
    Ok((Command { number, limit }, look))
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
        match command_of(device, command, data, request) {
            Ok((command, look)) => {
                let waiting = Waiting {
                    call,
                    file,
                    command,
                    look,
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
            let Waiting {
                call,
                file,
                command,
                look,
            } = waiting;
            let looked = Looked {
                call,
                file,
                command,
            };
            match look {
                Some(look) => {
                    self.last_look += 1;
                    let looks = &mut self.everybody.looks;
                    looks.insert(self.last_look, (turn, Some(looked)));
                    environment.look(self.last_look, look);
                }
                None => self.send_command(&looked, &[], turn, environment),
            }
        }
    }

    fn send_command(
        &mut self,
        looked: &Looked,
        data: &[u8],
        turn: Turn,
        environment: &mut impl Environment,
    ) {
        let Looked {
            call,
            file,
            command: Command { number, limit },
        } = *looked;
        let handle = match self.handle(file) {
            Ok(handle) => handle,
            Err(errno) => return fail(call, errno, environment),
        };
        let request = WireRequest::Ioctl {
            handle,
            command: number,
            argument: 0,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            data,
        };
        let pending = Pending::Ioctl {
            call,
            limit,
            _turn: Some(turn),
        };
        self.send(pending, &request, environment);
    }

    /// Continues a call whose caller was looked at.
    pub(super) fn call_seen(
        &mut self,
        number: u64,
        found: WholeWrite,
        environment: &mut impl Environment,
    ) {
        let Some((turn, Some(looked))) = self.everybody.looks.remove(&number) else {
            return;
        };
        match found {
            Some(Ok(data)) => self.send_command(&looked, &data, turn, environment),
            Some(Err(errno)) => fail(looked.call, errno, environment),
            None => fail(looked.call, Errno::EIO, environment),
        }
    }

    /// Interrupts a call, whose caller has got a signal. A call that waits for a turn or a look fails at once, because the wait may never
    /// end; kvmprof answers soon.
    fn interrupt_everybody(&mut self, call: Call, environment: &mut impl Environment) {
        let Everybody {
            opens,
            calls,
            looks,
        } = &mut self.everybody;
        let mut looks = looks.values_mut().map(|(_, looked)| looked);
        let looked = looks.find_map(|looked| looked.take_if(|looked| looked.call == call));
        if looked.is_some()
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
        let looks = self.everybody.looks.values_mut();
        let looked = looks.filter_map(|(_, looked)| Some(looked.take()?.call));
        let waiting = self.everybody.calls.take_if(|_| true);
        for call in looked.chain(waiting.into_iter().map(|waiting| waiting.call)) {
            fail(call, Errno::EIO, environment);
        }
    }

    /// Forgets those who wait here for a node that has ended.
    pub(super) fn forget_everybody(&mut self, node: usize) {
        let Everybody {
            opens,
            calls,
            looks,
        } = &mut self.everybody;
        opens.take_if(|call| call.node == node);
        calls.take_if(|waiting| waiting.call.node == node);
        for (_, looked) in looks.values_mut() {
            looked.take_if(|looked| looked.call.node == node);
        }
    }
}
