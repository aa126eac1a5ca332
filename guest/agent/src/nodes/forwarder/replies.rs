//! Answers the kernel's requests with kvmprof's replies.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Reply, ReplyFrame, Request as WireRequest};

use super::super::readiness;
use super::super::turns::Turn;
use super::{Call, Environment, Forwarder, OpenFile, Pending, PollInterest, fail};
use crate::cuse::protocol;

impl Forwarder {
    /// Acts on a reply of kvmprof. Returns false if no request was waiting for it, or it is of another kind: it violates the protocol.
    pub fn reply(&mut self, frame: &ReplyFrame<'_>, environment: &mut impl Environment) -> bool {
        let was_asked = self.act_on(frame, environment);
        // The reply may have ended a turn.
        self.give_turns(environment);
        was_asked
    }

    fn act_on(&mut self, frame: &ReplyFrame<'_>, environment: &mut impl Environment) -> bool {
        let Some(pending) = self.pending.remove(&frame.tag) else {
            return false;
        };
        if let Some(call) = pending.call() {
            self.waiting.remove(&call);
        }
        match (pending, frame.result) {
            (Pending::Nothing, _) | (Pending::AbandonedOpen, Err(_)) => {}
            (Pending::Watch(file), _) => self.wake_up(frame.tag, file, environment),
            (Pending::Release { call, .. }, _) => {
                environment.answer(call.node, &protocol::released(call.unique));
            }
            (
                Pending::Read {
                    call,
                    owner,
                    continued,
                    ..
                },
                Err(Errno::EAGAIN),
            ) => {
                if continued {
                    environment.answer(call.node, &protocol::read(call.unique, &[]));
                } else {
                    fail(call, Errno::EAGAIN, environment);
                }
                self.watch_next(owner.file, environment);
            }
            (pending, Err(errno)) => match pending.call() {
                Some(call) => fail(call, errno, environment),
                None => return false,
            },
            (pending, Ok(reply)) => return self.success(pending, reply, environment),
        }
        true
    }

    fn success(
        &mut self,
        pending: Pending,
        reply: Reply<'_>,
        environment: &mut impl Environment,
    ) -> bool {
        match (pending, reply) {
            (Pending::Open { call, turn }, Reply::Open { handle }) => {
                self.opened(call, handle, turn, environment);
            }
            (Pending::AbandonedOpen, Reply::Open { handle }) => {
                self.send(
                    Pending::Nothing,
                    &WireRequest::Close { handle },
                    environment,
                );
            }
            (
                Pending::Read {
                    call, owner, size, ..
                },
                Reply::Read { data },
            ) => {
                let (now, rest) = data.split_at(size.min(data.len()));
                environment.answer(call.node, &protocol::read(call.unique, now));
                if !rest.is_empty() {
                    self.fragments.keep_read(owner, now.len(), rest);
                }
                self.watch_next(owner.file, environment);
            }
            (
                Pending::Write {
                    call,
                    owner,
                    piece,
                    ahead,
                },
                Reply::Write { count },
            ) => {
                let count = usize::try_from(count).unwrap_or(piece);
                if ahead > 0 {
                    let total = (piece as u64).saturating_add(ahead);
                    self.fragments.keep_written(owner, piece, total);
                }
                environment.answer(call.node, &protocol::written(call.unique, piece.min(count)));
            }
            (Pending::Ioctl { call, limit, .. }, Reply::Ioctl { value, data }) => {
                let value = i32::try_from(value).unwrap_or(i32::MAX);
                let data = data.get(..limit.min(data.len())).unwrap_or_default();
                let answer = protocol::ioctl_done(call.unique, value, data);
                environment.answer(call.node, &answer);
            }
            (
                Pending::Poll {
                    call,
                    file,
                    kernel_handle,
                    notify,
                    events: wanted,
                },
                Reply::Poll { events },
            ) => {
                let revents = readiness::from_wire(events);
                environment.answer(call.node, &protocol::polled(call.unique, revents));
                let interest = PollInterest {
                    events: wanted,
                    kernel_handle,
                };
                match (notify, events) {
                    (false, _) => {}
                    (true, 0) => self.watch(file, interest, environment),
                    (true, _) => self.watch_after_read(file, interest),
                }
            }
            (pending, _) => {
                self.lose(pending, environment);
                return false;
            }
        }
        true
    }

    fn opened(
        &mut self,
        call: Call,
        handle: u32,
        turn: Option<Turn>,
        environment: &mut impl Environment,
    ) {
        self.last_file += 1;
        let number = self.last_file;
        let file = OpenFile {
            node: call.node,
            handle: Some(handle),
            watch: None,
            next_edge: None,
            turn,
        };
        self.files.insert(number, file);
        if !environment.answer(call.node, &protocol::opened(call.unique, number)) {
            // The caller has gone, and will never release the file.
            self.close(number, Pending::Nothing, environment);
        }
    }
}
