//! Forwards the kernel's requests to kvmprof, and kvmprof's replies to the kernel.

mod everybody;
mod inspections;
mod pid_commands;
mod polling;
mod replies;
mod transfers;

use std::collections::HashMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Request as WireRequest, device};

use self::everybody::{Command, SharedNodes};
use self::inspections::{BegunOperation, Inspections, UninspectedCall};
use self::pid_commands::PidCommand;
use super::fragments::{Fragments, Owner};
use super::ioctl::{self, Step};
use super::turns::Turn;
use super::{Inspection, InspectionResult, Node, readiness};
use crate::cuse::protocol::{self, Operation, Request};

/// The connections with which the forwarder works.
pub trait Environment {
    /// Answers a request of the node with this number. Returns false if nobody waits for the answer any more.
    fn answer(&mut self, node: usize, bytes: &[u8]) -> bool;

    /// Sends a request with this tag to kvmprof.
    fn send(&mut self, tag: u32, request: &WireRequest<'_>);

    /// Starts an inspection of a caller. Its result is passed to [`Forwarder::inspected`] with this number later; the forwarder doesn't wait for
    /// it.
    fn inspect(&mut self, number: u64, inspection: Inspection);
}

/// A request of the kernel that has to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    node: usize,
    unique: u64,
}

/// What a reply of kvmprof is for.
#[derive(Debug)]
enum Pending {
    Open {
        call: Call,
        /// The turn of a file of a node for everybody.
        turn: Option<Turn>,
    },
    /// An open that nobody waits for any more. The handle has to be closed.
    AbandonedOpen,
    Read {
        call: Call,
        owner: Owner,
        size: usize,
        /// Whether an earlier piece was read: then EAGAIN is answered as the end of the data.
        continued: bool,
    },
    Write {
        call: Call,
        owner: Owner,
        /// Bytes of the piece that the kernel has passed.
        piece: usize,
        /// Bytes of the call that follow this piece, and were written with it.
        ahead: u64,
    },
    Ioctl {
        call: Call,
        limit: usize,
        /// The turn of a call of a node for everybody. It ends with the reply.
        _turn: Option<Turn>,
    },
    Poll {
        call: Call,
        file: u64,
        kernel_handle: u64,
        notify: bool,
        events: u32,
    },
    /// A poll for those who wait for this file.
    Watch(u64),
    Release {
        call: Call,
        /// The turn of a file of a node for everybody.
        _turn: Option<Turn>,
    },
    /// A request whose reply nobody waits for.
    Nothing,
}

/// A waiting poll request at kvmprof, for those who wait for a file.
#[derive(Clone, Copy, Debug)]
struct Watch {
    tag: u32,
    events: u32,
    kernel_handle: u64,
}

#[derive(Debug)]
struct OpenFile {
    node: usize,
    /// The handle at kvmprof; `None` after the connection on which the file was opened has ended.
    handle: Option<u32>,
    watch: Option<Watch>,
    /// The last poll that found the file ready. An edge-triggered epoll continues to wait: it has to be woken up for new data after the
    /// next read.
    next_edge: Option<PollInterest>,
    /// The turn of a file of a node for everybody.
    turn: Option<Turn>,
}

/// The events of a poll, and the kernel's handle for waking up the poller.
#[derive(Clone, Copy, Debug)]
struct PollInterest {
    events: u32,
    kernel_handle: u64,
}

/// All nodes, their open files, and the calls in progress.
#[derive(Debug)]
pub struct Forwarder {
    nodes: Vec<Node>,
    connected: bool,
    files: HashMap<u64, OpenFile>,
    pending: HashMap<u32, Pending>,
    /// The tags of requests that may have to wait.
    waiting: HashMap<Call, u32>,
    fragments: Fragments,
    inspections: Inspections,
    everybody: SharedNodes,
    last_tag: u32,
    last_file: u64,
}

impl Forwarder {
    /// A forwarder for these nodes, which isn't connected yet.
    pub fn new(nodes: Vec<Node>) -> Self {
        Self {
            nodes,
            connected: false,
            files: HashMap::new(),
            pending: HashMap::new(),
            waiting: HashMap::new(),
            fragments: Fragments::default(),
            inspections: Inspections::default(),
            everybody: SharedNodes::default(),
            last_tag: 0,
            last_file: 0,
        }
    }

    /// Notes that there is a connection to kvmprof.
    pub fn connect(&mut self) {
        self.connected = true;
    }

    /// Notes that the connection has ended: calls in progress fail, and so do calls on files that are open now.
    pub fn disconnect(&mut self, environment: &mut impl Environment) {
        self.connected = false;
        self.waiting.clear();
        self.fragments.clear();
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.lose(pending, environment);
        }
        for call in self.inspections.take_if(|_| true) {
            fail(call, Errno::EIO, environment);
        }
        self.lose_everybody(environment);
        for file in self.files.values_mut() {
            file.handle = None;
            if let Some(watch) = file.watch.take() {
                environment.answer(file.node, &protocol::wake_up(watch.kernel_handle));
            }
        }
    }

    /// Answers a call that will have no reply.
    fn lose(&mut self, pending: Pending, environment: &mut impl Environment) {
        match pending {
            Pending::Open { call, .. } => fail(call, Errno::ENXIO, environment),
            Pending::Read { call, .. }
            | Pending::Write { call, .. }
            | Pending::Ioctl { call, .. } => fail(call, Errno::EIO, environment),
            Pending::Poll { call, .. } => {
                environment.answer(call.node, &protocol::polled(call.unique, readiness::LOST));
            }
            Pending::Release { call, .. } => {
                environment.answer(call.node, &protocol::released(call.unique));
            }
            Pending::AbandonedOpen | Pending::Watch(_) | Pending::Nothing => {}
        }
    }

    /// Notes that the node's channel has ended, and with it all files that were open on it.
    pub fn node_ended(&mut self, node: usize, environment: &mut impl Environment) {
        let ended: Vec<u64> = self.files_of(node).collect();
        for file in ended {
            self.close(file, Pending::Nothing, environment);
        }
        self.inspections.take_if(|call| call.node == node);
        self.forget_everybody(node);
        for pending in self.pending.values_mut() {
            if pending.call().is_some_and(|call| call.node == node) {
                *pending = match pending {
                    Pending::Open { .. } => Pending::AbandonedOpen,
                    _ => Pending::Nothing,
                };
            }
        }
        self.waiting.retain(|call, _| call.node != node);
    }

    fn files_of(&self, node: usize) -> impl Iterator<Item = u64> {
        let files = self.files.iter();
        files.filter_map(move |(number, file)| (file.node == node).then_some(*number))
    }

    /// Continues a call whose caller was inspected; `found` is the result.
    pub fn inspected(
        &mut self,
        number: u64,
        found: InspectionResult,
        environment: &mut impl Environment,
    ) {
        if let Some((UninspectedCall { call, operation }, turn)) = self.inspections.end(number) {
            match operation {
                BegunOperation::Write { owner, piece } => {
                    self.write_whole(call, owner, &piece, found, environment);
                }
                BegunOperation::PidCommand(command) => {
                    self.send_pid_command(call, command, found, environment);
                }
                BegunOperation::Command(command) => match found {
                    Some(Ok(data)) => self.send_command(call, command, &data, turn, environment),
                    Some(Err(errno)) => fail(call, errno, environment),
                    None => fail(call, Errno::EIO, environment),
                },
            }
        }
        self.give_turns(environment);
    }

    /// Starts an inspection of the caller, for which the call waits.
    fn inspect(
        &mut self,
        beginning: UninspectedCall,
        turn: Option<Turn>,
        inspection: Inspection,
        environment: &mut impl Environment,
    ) {
        let number = self.inspections.add(beginning, turn);
        environment.inspect(number, inspection);
    }

    /// Acts on a request of the node with this number.
    pub fn request(
        &mut self,
        node: usize,
        request: &Request<'_>,
        environment: &mut impl Environment,
    ) {
        if self.is_for_everybody(node) {
            self.request_of_everybody(node, request, environment);
            self.give_turns(environment);
        } else {
            self.act(node, request, environment);
        }
    }

    fn act(&mut self, node: usize, request: &Request<'_>, environment: &mut impl Environment) {
        let call = Call {
            node,
            unique: request.unique,
        };
        let owner = |file: u64| Owner {
            file,
            thread: request.thread,
        };
        match request.operation {
            Operation::Open => self.open(call, None, environment),
            Operation::Read {
                file,
                offset: 0,
                size,
                flags,
            } => {
                self.finish_staged(file, environment);
                self.read(call, owner(file), size, flags, environment);
            }
            Operation::Read {
                file, offset, size, ..
            } => self.continue_read(call, owner(file), offset, size, environment),
            Operation::Write {
                file,
                offset: 0,
                data,
            } => {
                self.finish_staged(file, environment);
                self.begin_write(call, owner(file), data, environment);
            }
            Operation::Write { file, offset, data } => {
                self.continue_write(call, owner(file), offset, data, environment);
            }
            Operation::Ioctl { file, .. } => {
                self.finish_staged(file, environment);
                self.ioctl(call, request, environment);
            }
            Operation::Poll { file, .. } => {
                self.finish_staged(file, environment);
                self.poll(call, request.operation, environment);
            }
            Operation::Release { file } => {
                self.finish_staged(file, environment);
                let _turn = self.turn_of(file);
                self.close(file, Pending::Release { call, _turn }, environment);
            }
            Operation::Interrupt { unique } => self.interrupt(Call { node, unique }, environment),
            Operation::Notice => {}
            Operation::Init { .. } | Operation::Unknown => {
                fail(call, Errno(libc::ENOSYS), environment)
            }
        }
    }

    fn open(&mut self, call: Call, turn: Option<Turn>, environment: &mut impl Environment) {
        let Some(node) = self.nodes.get(call.node).filter(|_| self.connected) else {
            return fail(call, Errno::ENXIO, environment);
        };
        let request = WireRequest::Open {
            device: node.device,
            minor: node.minor,
            // Every read has its own flag, because the file's O_NONBLOCK can change while it is open.
            flags: 0,
        };
        self.send(Pending::Open { call, turn }, &request, environment);
    }

    /// The handle of an open file at kvmprof.
    fn handle(&self, file: u64) -> Result<u32, Errno> {
        let file = self.files.get(&file).ok_or(Errno::EBADF)?;
        file.handle.ok_or(Errno::EIO)
    }

    /// kvmprof's number of a node's device.
    fn device(&self, node: usize) -> u16 {
        self.nodes.get(node).map_or(0, |node| node.device)
    }

    fn is_prf(&self, node: usize) -> bool {
        self.device(node) == device::PRF
    }

    /// Takes the turn of a file.
    fn turn_of(&mut self, file: u64) -> Option<Turn> {
        self.files.get_mut(&file)?.turn.take()
    }

    fn ioctl(&mut self, call: Call, request: &Request<'_>, environment: &mut impl Environment) {
        let Operation::Ioctl {
            file,
            command,
            argument,
            data,
            out_size,
            ..
        } = request.operation
        else {
            return;
        };
        if let Err(errno) = self.handle(file) {
            return fail(call, errno, environment);
        }
        let device = self.device(call.node);
        match ioctl::step(device, command, argument, data, out_size) {
            Step::Fetch { reads, stores } => {
                let answer = protocol::ioctl_retry(call.unique, reads, stores);
                environment.answer(call.node, &answer);
            }
            Step::Go { argument, limit } => {
                if let Some(begun) = PidCommand::of(device, file, command, argument, data) {
                    return self.begin_pid_command(call, request.thread, begun, environment);
                }
                let command = Command {
                    file,
                    number: command,
                    argument,
                    limit,
                };
                self.send_command(call, command, data, None, environment);
            }
        }
    }

    fn close(&mut self, number: u64, pending: Pending, environment: &mut impl Environment) {
        self.fragments.forget(number);
        match self.files.remove(&number).and_then(|file| file.handle) {
            Some(handle) => {
                self.send(pending, &WireRequest::Close { handle }, environment);
            }
            None => self.lose(pending, environment),
        }
    }

    /// Interrupts a call, whose caller has got a signal: cancels its request if that waits. The call is answered in any case.
    fn interrupt(&mut self, call: Call, environment: &mut impl Environment) {
        if let Some(tag) = self.waiting.remove(&call) {
            self.send(Pending::Nothing, &WireRequest::Cancel { tag }, environment);
        }
        // The inspection of its caller may never end.
        if !self.inspections.take_if(|begun| *begun == call).is_empty() {
            fail(call, Errno::EINTR, environment);
        }
    }

    fn send(
        &mut self,
        pending: Pending,
        request: &WireRequest<'_>,
        environment: &mut impl Environment,
    ) -> u32 {
        loop {
            self.last_tag = self.last_tag.wrapping_add(1);
            if !self.pending.contains_key(&self.last_tag) {
                break;
            }
        }
        self.pending.insert(self.last_tag, pending);
        environment.send(self.last_tag, request);
        self.last_tag
    }
}

impl Pending {
    /// The call that waits for this reply.
    fn call(&self) -> Option<Call> {
        match self {
            Self::Open { call, .. }
            | Self::Read { call, .. }
            | Self::Write { call, .. }
            | Self::Ioctl { call, .. }
            | Self::Poll { call, .. }
            | Self::Release { call, .. } => Some(*call),
            Self::AbandonedOpen | Self::Watch(_) | Self::Nothing => None,
        }
    }
}

fn fail(call: Call, errno: Errno, environment: &mut impl Environment) {
    environment.answer(call.node, &protocol::failed(call.unique, errno));
}
