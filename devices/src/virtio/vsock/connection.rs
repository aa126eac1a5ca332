//! The state of one connection, and the bytes that wait for the host's end.

use std::collections::VecDeque;

use super::packet::{
    Header, Operation, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM,
};
use super::{BUFFER, Readiness, Stream, Transfer};

/// Maximum number of bytes that one call writes to the host's end.
const PIECE: usize = 16 << 10;

/// Why the device has to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The packet is invalid in the connection's state.
    Malformed,
    /// The guest has sent more bytes than its credit allows.
    Credit,
}

/// A packet to the guest, without the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub operation: Operation,
    pub flags: u32,
    /// How many bytes of the buffer belong to the packet.
    pub length: usize,
}

/// A connection between a port of the guest and a stream of the host.
#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: S,
    pub guest_port: u32,
    pub host_port: u32,
    /// The guest has accepted the connection or has asked for it.
    open: bool,
    /// REQUEST or RESPONSE: the packet that has to be sent to the guest first.
    first: Option<Operation>,
    ready: Readiness,
    /// Bytes for the host's end. The device's own bytes are in front.
    waiting: VecDeque<u8>,
    /// How many of these bytes are the device's own. They don't use the guest's credit.
    own: usize,
    /// The host's end will send no more bytes.
    host_sent_all: bool,
    /// The host's end will accept no more bytes.
    host_is_deaf: bool,
    /// The flags of SHUTDOWN that the guest has sent, and those that were sent to it.
    guest_shutdown: u32,
    sent_shutdown: u32,
    /// The stream knows that the guest will send no more bytes.
    ended_writing: bool,
    /// How many bytes of the guest have left `waiting`, and the last such number that was sent to the guest; both modulo 2^32.
    forwarded: u32,
    sent_forwarded: u32,
    /// The guest has asked for its credit.
    wants_credit: bool,
    /// The size of the guest's buffer, the bytes that have left it, and the bytes that were sent to it; the last two modulo 2^32.
    guest_room: u32,
    guest_forwarded: u32,
    sent: u32,
    /// The guest was asked for its room, and has sent no packet since.
    asked_for_credit: bool,
    /// The connection waits for its turn to send to the guest.
    pub queued: bool,
}

impl<S: Stream> Connection<S> {
    /// A connection that the guest has asked for by `request`.
    pub fn of_guest(stream: S, request: &Header) -> Self {
        let mut connection = Self::new(stream, request.source_port, request.destination_port);
        connection.open = true;
        connection.first = Some(Operation::Response);
        connection.take_credit(request);
        connection
    }

    /// A connection that a program of the host asks for.
    pub fn of_host(stream: S, guest_port: u32, host_port: u32) -> Self {
        let mut connection = Self::new(stream, guest_port, host_port);
        connection.first = Some(Operation::Request);
        connection
    }

    fn new(stream: S, guest_port: u32, host_port: u32) -> Self {
        Self {
            stream,
            guest_port,
            host_port,
            open: false,
            first: None,
            // Events from before the connection was made weren't read, so the device has to try the stream.
            ready: Readiness {
                input: true,
                room: true,
                hung_up: false,
            },
            waiting: VecDeque::new(),
            own: 0,
            host_sent_all: false,
            host_is_deaf: false,
            guest_shutdown: 0,
            sent_shutdown: 0,
            ended_writing: false,
            forwarded: 0,
            sent_forwarded: 0,
            wants_credit: false,
            guest_room: 0,
            guest_forwarded: 0,
            sent: 0,
            asked_for_credit: false,
            queued: false,
        }
    }

    pub fn name(&self) -> u64 {
        self.stream.name()
    }

    /// True if the host's end is gone, and only the guest still has to close the connection.
    pub fn is_over_for_host(&self) -> bool {
        self.sent_shutdown == SHUTDOWN_BOTH || self.ready.hung_up && !self.open
    }

    /// True if the guest has asked for the connection or has been asked for it.
    pub fn is_known_to_guest(&self) -> bool {
        self.first != Some(Operation::Request)
    }

    /// True if both sides have agreed to the connection.
    pub fn was_open(&self) -> bool {
        self.open
    }

    /// True if the guest has closed both directions and no bytes wait for the host's end.
    pub fn is_over(&self) -> bool {
        self.guest_shutdown == SHUTDOWN_BOTH && self.waiting.is_empty()
    }

    /// Notes what the stream can do.
    pub fn note(&mut self, ready: Readiness) {
        self.ready.input |= ready.input;
        self.ready.room |= ready.room;
        self.ready.hung_up |= ready.hung_up;
    }

    /// Handles a packet of the guest, whose payload is `data`.
    pub fn take(
        &mut self,
        operation: Operation,
        header: &Header,
        data: &[u8],
    ) -> Result<(), Fault> {
        self.take_credit(header);
        match (operation, self.open) {
            (Operation::Response, false) => {
                self.open = true;
                let answer = format!("OK {}\n", self.host_port);
                self.own = answer.len();
                self.waiting.extend(answer.into_bytes());
            }
            (Operation::Data, true) => return self.take_data(data),
            (Operation::Shutdown, true) => self.guest_shutdown |= header.flags & SHUTDOWN_BOTH,
            (Operation::CreditUpdate, true) => {}
            (Operation::CreditRequest, true) => self.wants_credit = true,
            _ => return Err(Fault::Malformed),
        }
        Ok(())
    }

    fn take_credit(&mut self, header: &Header) {
        self.guest_room = header.room;
        self.guest_forwarded = header.forwarded;
        self.asked_for_credit = false;
    }

    fn take_data(&mut self, data: &[u8]) -> Result<(), Fault> {
        if self.guest_shutdown & SHUTDOWN_SEND != 0 {
            return Err(Fault::Malformed);
        }
        if data.len() > self.room() {
            return Err(Fault::Credit);
        }
        if self.host_is_deaf {
            self.count_forwarded(data.len());
        } else {
            self.waiting.extend(data);
        }
        Ok(())
    }

    /// How many bytes the guest may send now.
    pub fn room(&self) -> usize {
        BUFFER.saturating_sub(self.waiting.len() - self.own)
    }

    fn count_forwarded(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.forwarded = self.forwarded.wrapping_add(bytes);
    }

    /// Writes waiting bytes while the stream accepts them. Returns how many of the written bytes are the guest's.
    pub fn flush(&mut self) -> u64 {
        let mut bytes = 0;
        while self.ready.room && !self.waiting.is_empty() {
            let (piece, _) = self.waiting.as_slices();
            let piece = piece.get(..PIECE).unwrap_or(piece);
            match self.stream.write(piece) {
                Transfer::Bytes(count) => bytes += self.leave(count),
                Transfer::Later => self.ready.room = false,
                Transfer::Ended => {
                    self.host_is_deaf = true;
                    self.leave(self.waiting.len());
                }
            }
        }
        let said_all = self.guest_shutdown & SHUTDOWN_SEND != 0 && self.waiting.is_empty();
        if said_all && !self.ended_writing {
            self.ended_writing = true;
            self.stream.end_writing();
        }
        bytes
    }

    /// Removes the first `count` bytes from the buffer. Returns how many of them were the guest's.
    fn leave(&mut self, count: usize) -> u64 {
        let count = count.min(self.waiting.len());
        self.waiting.drain(..count);
        let own = self.own.min(count);
        self.own -= own;
        self.count_forwarded(count - own);
        if self.waiting.is_empty() {
            // Idle connections keep no buffers.
            self.waiting = VecDeque::new();
        }
        (count - own) as u64
    }

    /// How many bytes the guest has room for.
    fn credit(&self) -> usize {
        let on_the_way = self.sent.wrapping_sub(self.guest_forwarded);
        let credit = self.guest_room.saturating_sub(on_the_way);
        usize::try_from(credit).unwrap_or(usize::MAX)
    }

    /// The next packet for the guest, or `None` if there is none now. Its payload is put into `buffer`.
    pub fn next(&mut self, buffer: &mut [u8]) -> Option<Outgoing> {
        if let Some(operation) = self.first.take() {
            return Some(self.plain(operation));
        }
        if !self.open {
            return None;
        }
        if let Some(packet) = self.next_data(buffer) {
            return Some(packet);
        }
        if self.host_sent_all && self.ready.hung_up {
            self.host_is_deaf = true;
        }
        let flag = |on, flag| if on { flag } else { 0 };
        let shutdown = flag(self.host_sent_all, SHUTDOWN_SEND)
            | flag(
                self.host_is_deaf && self.waiting.is_empty(),
                SHUTDOWN_RECEIVE,
            );
        if shutdown & !self.sent_shutdown != 0 {
            self.sent_shutdown |= shutdown;
            return Some(Outgoing {
                flags: self.sent_shutdown,
                ..self.plain(Operation::Shutdown)
            });
        }
        let unreported = self.forwarded.wrapping_sub(self.sent_forwarded);
        if self.wants_credit || usize::try_from(unreported).is_ok_and(|bytes| bytes >= BUFFER / 2) {
            return Some(self.plain(Operation::CreditUpdate));
        }
        None
    }

    /// A packet with bytes of the host's end, or a request for credit if the guest has no room for them.
    fn next_data(&mut self, buffer: &mut [u8]) -> Option<Outgoing> {
        let refused = self.guest_shutdown & SHUTDOWN_RECEIVE != 0;
        if !self.ready.input || self.host_sent_all || refused {
            return None;
        }
        let credit = self.credit().min(buffer.len());
        let room = buffer.get_mut(..credit).filter(|room| !room.is_empty());
        let Some(room) = room else {
            let ask = !std::mem::replace(&mut self.asked_for_credit, true);
            return ask.then(|| self.plain(Operation::CreditRequest));
        };
        match self.stream.read(room) {
            Transfer::Bytes(length) => {
                let bytes = u32::try_from(length).unwrap_or(u32::MAX);
                self.sent = self.sent.wrapping_add(bytes);
                Some(Outgoing {
                    length,
                    ..self.plain(Operation::Data)
                })
            }
            Transfer::Later => {
                self.ready.input = false;
                None
            }
            Transfer::Ended => {
                self.host_sent_all = true;
                None
            }
        }
    }

    /// A packet without payload and flags.
    fn plain(&self, operation: Operation) -> Outgoing {
        Outgoing {
            operation,
            flags: 0,
            length: 0,
        }
    }

    /// The header of `packet`. It also tells the guest its credit.
    pub fn header(&mut self, guest_cid: u64, packet: Outgoing) -> Header {
        self.wants_credit = false;
        self.sent_forwarded = self.forwarded;
        Header {
            source_cid: super::HOST_CID,
            destination_cid: guest_cid,
            source_port: self.host_port,
            destination_port: self.guest_port,
            length: u32::try_from(packet.length).unwrap_or(u32::MAX),
            kind: TYPE_STREAM,
            operation: packet.operation as u16,
            flags: packet.flags,
            room: u32::try_from(BUFFER).unwrap_or(u32::MAX),
            forwarded: self.forwarded,
        }
    }
}
