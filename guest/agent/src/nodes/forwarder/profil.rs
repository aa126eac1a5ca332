//! profil's node, which every program of the guest may open. What pcsd and kvmprof have little of, the wire's open files and
//! requests, is dealt out here by turns, so that no user keeps another one, or the other nodes, from it.

use std::collections::HashMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{self, Call as ProfilCall};
use kvmprof_abi::wire::Request as WireRequest;

use super::super::ioctl::{self, Step};
use super::super::readiness;
use super::super::turns::{Limits, Queue, Turn};
use super::super::{Look, WholeWrite};
use super::{Call, Environment, Forwarder, Pending, fail};
use crate::cuse::protocol::{self, Operation, Request};

/// Open files. The wire has 256 for all nodes.
const FILES: Limits = Limits {
    total: 96,
    of_one_user: 24,
};
/// Calls under way, which includes the look at the caller. The wire has 256 unanswered requests for all nodes.
const CALLS: Limits = Limits {
    total: 32,
    of_one_user: 8,
};

/// What a call of an open file is about.
#[derive(Debug)]
enum Wanted {
    /// `PROFIL_CALL`, whose caller has to be looked at.
    Call { thread: u32, asked: ProfilCall },
    /// `PROFIL_GETSTAT`.
    Status,
}

/// A call that has, or waits for, its turn.
#[derive(Debug)]
struct Waiting {
    call: Call,
    file: u64,
    wanted: Wanted,
}

/// A call whose caller is looked at.
#[derive(Debug)]
struct Looked {
    call: Call,
    file: u64,
}

/// What is under way on the node.
#[derive(Debug)]
pub(super) struct Profil {
    opens: Queue<Call>,
    calls: Queue<Waiting>,
    /// By the number of the look. The turn is over when the look is, even if nobody waits for what it finds any more.
    looks: HashMap<u64, (Turn, Option<Looked>)>,
}

impl Default for Profil {
    fn default() -> Self {
        Self {
            opens: Queue::new(FILES),
            calls: Queue::new(CALLS),
            looks: HashMap::new(),
        }
    }
}

impl Forwarder {
    /// Acts on a request of profil's node. What needs a turn gets it by [`give_turns`](Self::give_turns).
    pub(super) fn profil_request(
        &mut self,
        node: usize,
        request: &Request<'_>,
        environment: &mut impl Environment,
    ) {
        let unique = request.unique;
        let call = Call { node, unique };
        match request.operation {
            Operation::Open if self.connected => {
                self.profil.opens.add(request.user, unique, call);
            }
            Operation::Ioctl { .. } => self.profil_ioctl(call, request, environment),
            Operation::Poll { .. } => {
                environment.answer(node, &protocol::polled(unique, readiness::ALWAYS));
            }
            // There is nothing to read: a process's own buffer is in its memory.
            Operation::Read { .. } | Operation::Write { .. } => {
                fail(call, Errno::EINVAL, environment);
            }
            Operation::Interrupt { unique } => {
                self.interrupt_profil(Call { node, unique }, environment);
            }
            _ => self.act(node, request, environment),
        }
    }

    fn profil_ioctl(
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
        if compat {
            // Its program counters and pointers are of another size.
            return fail(call, Errno(libc::EOPNOTSUPP), environment);
        }
        let device = self.device(call.node);
        if let Step::Fetch { reads, stores } =
            ioctl::step(device, command, argument, data, out_size)
        {
            let answer = protocol::ioctl_retry(call.unique, reads, stores);
            environment.answer(call.node, &answer);
            return;
        }
        let thread = request.thread;
        let wanted = match command {
            profil::PROFIL_CALL => {
                ProfilCall::decode(data).map(|asked| Wanted::Call { thread, asked })
            }
            profil::PROFIL_GETSTAT => Some(Wanted::Status),
            _ => None,
        };
        let Some(wanted) = wanted else {
            return fail(call, Errno::EINVAL, environment);
        };
        let waiting = Waiting { call, file, wanted };
        self.profil.calls.add(request.user, call.unique, waiting);
    }

    /// Goes on with those whose turn it is.
    pub(super) fn give_turns(&mut self, environment: &mut impl Environment) {
        while let Some((turn, call)) = self.profil.opens.next() {
            self.open(call, Some(turn), environment);
        }
        while let Some((turn, waiting)) = self.profil.calls.next() {
            let Waiting { call, file, wanted } = waiting;
            match wanted {
                Wanted::Call { thread, asked } => {
                    self.last_look += 1;
                    let looked = Looked { call, file };
                    self.profil
                        .looks
                        .insert(self.last_look, (turn, Some(looked)));
                    let look = Look::ProfilCall {
                        thread,
                        call: asked,
                    };
                    environment.look(self.last_look, look);
                }
                Wanted::Status => {
                    let limit = profil::Status::SIZE;
                    let request = (profil::PROFIL_GETSTAT, limit, &[][..]);
                    self.send_profil(call, file, request, turn, environment);
                }
            }
        }
    }

    fn send_profil(
        &mut self,
        call: Call,
        file: u64,
        (command, limit, data): (u32, usize, &[u8]),
        turn: Turn,
        environment: &mut impl Environment,
    ) {
        let handle = match self.handle(file) {
            Ok(handle) => handle,
            Err(errno) => return fail(call, errno, environment),
        };
        let request = WireRequest::Ioctl {
            handle,
            command,
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

    /// Goes on with a call whose caller was looked at.
    pub(super) fn profil_seen(
        &mut self,
        number: u64,
        found: WholeWrite,
        environment: &mut impl Environment,
    ) {
        let Some((turn, Some(Looked { call, file }))) = self.profil.looks.remove(&number) else {
            return;
        };
        match found {
            Some(Ok(data)) => {
                let request = (profil::PROFIL_CALL, 0, data.as_slice());
                self.send_profil(call, file, request, turn, environment);
            }
            Some(Err(errno)) => fail(call, errno, environment),
            None => fail(call, Errno::EIO, environment),
        }
    }

    /// A caller has got a signal. What waits for a turn, or for a look, is taken back, for that may be for ever; kvmprof doesn't
    /// make it wait.
    fn interrupt_profil(&mut self, call: Call, environment: &mut impl Environment) {
        let mut looked = self.profil.looks.values_mut().map(|(_, looked)| looked);
        let found = looked.find_map(|looked| looked.take_if(|looked| looked.call == call));
        if found.is_some()
            || self.profil.opens.remove(call.unique).is_some()
            || self.profil.calls.remove(call.unique).is_some()
        {
            fail(call, Errno::EINTR, environment);
        }
    }

    /// Answers those who wait here, because there is no kvmprof any more.
    pub(super) fn lose_profil(&mut self, environment: &mut impl Environment) {
        for call in self.profil.opens.take_all() {
            fail(call, Errno::ENXIO, environment);
        }
        let looked = self.profil.looks.values_mut();
        let looked = looked.filter_map(|(_, looked)| Some(looked.take()?.call));
        let waiting = self.profil.calls.take_all().map(|waiting| waiting.call);
        for call in looked.chain(waiting) {
            fail(call, Errno::EIO, environment);
        }
    }

    /// Forgets those who wait here if this is profil's node, which has ended.
    pub(super) fn forget_profil(&mut self, node: usize) {
        if self.device(node) == kvmprof_abi::wire::device::PROFIL {
            drop(self.profil.opens.take_all());
            drop(self.profil.calls.take_all());
            for (_, looked) in self.profil.looks.values_mut() {
                *looked = None;
            }
        }
    }
}
