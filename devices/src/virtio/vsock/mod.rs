//! The socket device (section 5.10): stream connections between ports of the guest and streams of a [`Host`].
//!
//! Queue 0 goes to the driver, queue 1 comes from the driver, and queue 2 is for events; the device has none. Each connection has a
//! buffer of [`BUFFER`] bytes for what the guest sends: its size is the guest's credit. The device reads what the host sends
//! from the stream only when the guest has room for it, and needs no buffer for that direction.

mod connection;
mod connections;
mod packet;

use std::collections::VecDeque;

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;

use super::turn::{GivesUp, take_turn};
use super::{
    Direction, GuestMemory, MmioTransport, QUEUE_FEATURES, QueueError, VirtioDevice, Virtqueue,
};
use connection::{Connection, Fault};
use connections::Connections;

pub use kvmprof_recording::status::VsockCounts;
pub use packet::{
    HEADER_SIZE, HOST_CID, Header, Operation, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND,
    TYPE_STREAM,
};

/// The maximum number of connections, of guest and host together.
pub const CONNECTIONS_MAX: usize = 256;
/// How many bytes of one connection may wait for the host's end.
pub const BUFFER: usize = 64 << 10;

/// Maximum number of entries of each queue.
const QUEUE_SIZE_MAX: u16 = 256;
/// The maximum payload of a packet to the guest, in bytes. Linux offers buffers of 4 KiB, which limit it further.
const PACKET_MAX: usize = 64 << 10;
/// Maximum number of bytes that are moved in one direction before the other direction has its turn.
const BUDGET: usize = 256 << 10;
/// The minimum number of bytes that a packet counts as: short packets take time, too.
const PACKET_COST: usize = 4 << 10;
/// Maximum number of resets that wait to be sent. While that many wait, the device takes no packets of the guest.
const ANSWERS_MAX: usize = 64;

/// The result of a read or a write of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// This many bytes were moved, at least one.
    Bytes(usize),
    /// No byte can be moved now.
    Later,
    /// No byte can be moved any more: the other end is gone, or has ended this direction.
    Ended,
}

/// The events of a stream since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Bytes or the end of the stream can be read.
    pub input: bool,
    /// A write would accept bytes or fail.
    pub room: bool,
    /// The other end has ended both directions.
    pub hung_up: bool,
}

/// The host's end of a connection. No method blocks. Dropping it closes it.
pub trait Stream {
    /// A number that no other stream has or had: [`MmioTransport::ready`] names the stream by it.
    fn name(&self) -> u64;

    /// Reads bytes into `buffer`, which isn't empty.
    fn read(&mut self, buffer: &mut [u8]) -> Transfer;

    /// Writes some of `bytes`, which isn't empty.
    fn write(&mut self, bytes: &[u8]) -> Transfer;

    /// Ends the direction to the host's end: no further write follows.
    fn end_writing(&mut self);
}

/// The listeners of the host that the guest can connect to. No method blocks.
pub trait Host {
    /// The host's end of a connection.
    type Stream: Stream;

    /// Connects to the listener at `port`; `None` if there is none.
    fn connect(&mut self, port: u32) -> Option<Self::Stream>;
}

/// The socket device.
#[derive(Debug)]
pub struct Vsock<S> {
    cid: u64,
    connections: Connections<S>,
    answers: VecDeque<Header>,
    counts: VsockCounts,
    /// The queues are unusable until a reset.
    broken: bool,
    buffer: Box<[u8]>,
}

impl<S: Stream> Vsock<S> {
    /// The device of the guest with the address `cid`, from 3 to 2^32 - 2 (section 5.10.4).
    #[must_use]
    pub fn new(cid: u32) -> Self {
        Self {
            cid: cid.into(),
            connections: Connections::default(),
            answers: VecDeque::new(),
            counts: VsockCounts::default(),
            broken: false,
            buffer: vec![0; PACKET_MAX].into(),
        }
    }

    /// What the device has done since the start.
    #[must_use]
    pub fn counts(&self) -> VsockCounts {
        self.counts
    }

    /// The number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Handles packets of the guest, for a bounded time. True if there may be more.
    fn take_packets(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        host: &mut dyn Host<Stream = S>,
    ) -> Result<bool, QueueError> {
        let mut left = BUDGET;
        while left > 0 {
            if self.answers.len() >= ANSWERS_MAX {
                // The guest notifies when it offers buffers for the answers.
                return Ok(false);
            }
            if !queue.begin(memory, Direction::ToDevice)? {
                return Ok(false);
            }
            left = left.saturating_sub(queue.remaining().max(PACKET_COST));
            self.take_packet(queue, memory, host)?;
            queue.finish(memory)?;
        }
        Ok(true)
    }

    fn take_packet(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        host: &mut dyn Host<Stream = S>,
    ) -> Result<(), QueueError> {
        let mut bytes = [0; HEADER_SIZE];
        if queue.read(memory, &mut bytes)? < HEADER_SIZE {
            self.counts.malformed += 1;
            return Ok(());
        }
        let header = Header::decode(&bytes);
        if header.source_cid != self.cid || header.destination_cid != HOST_CID {
            // The source address can't be trusted, so the packet gets no answer.
            self.counts.malformed += 1;
            return Ok(());
        }
        let Some(operation) = Operation::from_number(header.operation) else {
            self.fail(&header, Fault::Malformed);
            return Ok(());
        };
        let ports = (header.source_port, header.destination_port);
        if header.kind != TYPE_STREAM {
            self.refuse(&header, operation);
        } else if self.connections.by_ports(ports).is_none() {
            match operation {
                Operation::Request => self.connect(&header, host),
                _ => self.refuse(&header, operation),
            }
        } else if operation == Operation::Reset {
            self.end(ports);
        } else {
            self.take_known(&header, operation, queue, memory)?;
        }
        Ok(())
    }

    /// Handles a packet of an existing connection.
    fn take_known(
        &mut self,
        header: &Header,
        operation: Operation,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
    ) -> Result<(), QueueError> {
        let ports = (header.source_port, header.destination_port);
        let Some(connection) = self.connections.by_ports(ports) else {
            return Ok(());
        };
        let length = match operation {
            Operation::Data => usize::try_from(header.length).unwrap_or(usize::MAX),
            _ => 0,
        };
        let buffer = self.buffer.get_mut(..length);
        let taken = match buffer {
            _ if length > queue.readable() => Err(Fault::Malformed),
            Some(data) if length <= connection.room() => {
                queue.read(memory, data)?;
                connection.take(operation, header, data)
            }
            _ => Err(Fault::Credit),
        };
        let answered = operation == Operation::Response;
        match taken {
            Ok(()) => {
                self.counts.host_connections += u64::from(answered);
                let name = connection.name();
                self.advance(name);
            }
            Err(fault) => self.fail(header, fault),
        }
        Ok(())
    }

    /// Handles the guest's request for a connection.
    fn connect(&mut self, header: &Header, host: &mut dyn Host<Stream = S>) {
        let stream = if self.make_room() {
            host.connect(header.destination_port)
        } else {
            None
        };
        let Some(stream) = stream else {
            self.counts.guest_refused += 1;
            self.answers.push_back(header.reset());
            return;
        };
        self.counts.guest_connections += 1;
        self.connections.add(Connection::of_guest(stream, header));
    }

    /// Makes room for another connection, by ending one that has ended on the host's side if necessary. False if there is none. No connection is
    /// ended while the guest takes no answers.
    fn make_room(&mut self) -> bool {
        if self.connections.len() < CONNECTIONS_MAX {
            return true;
        }
        if self.answers.len() >= ANSWERS_MAX {
            return false;
        }
        let Some(ports) = self.connections.oldest_over() else {
            return false;
        };
        self.reset(ports);
        true
    }

    /// Refuses a packet without a connection or of an unknown type.
    fn refuse(&mut self, header: &Header, operation: Operation) {
        self.counts.unknown += 1;
        if operation != Operation::Reset {
            self.answers.push_back(header.reset());
        }
    }

    /// Ends the connection of an invalid packet.
    fn fail(&mut self, header: &Header, fault: Fault) {
        match fault {
            Fault::Malformed => self.counts.malformed += 1,
            Fault::Credit => self.counts.credit_violations += 1,
        }
        self.end((header.source_port, header.destination_port));
        self.answers.push_back(header.reset());
    }

    /// Ends a connection without telling the guest.
    fn end(&mut self, ports: (u32, u32)) {
        if let Some(connection) = self.connections.remove(ports) {
            self.counts.host_refused += u64::from(!connection.was_open());
        }
    }

    /// Ends a connection, and tells the guest if it knows the connection.
    fn reset(&mut self, ports: (u32, u32)) {
        let connection = self.connections.by_ports(ports);
        let is_known = connection.is_some_and(|connection| connection.is_known_to_guest());
        self.end(ports);
        if !is_known {
            return;
        }
        let (guest_port, host_port) = ports;
        self.answers.push_back(Header {
            source_cid: HOST_CID,
            destination_cid: self.cid,
            source_port: host_port,
            destination_port: guest_port,
            kind: TYPE_STREAM,
            operation: Operation::Reset as u16,
            ..Header::default()
        });
    }

    /// Writes what waits for the host's end. Then ends the connection if it is over, or queues it to send to the guest.
    fn advance(&mut self, name: u64) {
        let Some(connection) = self.connections.by_name(name) else {
            return;
        };
        self.counts.sent_bytes += connection.flush();
        let ports = (connection.guest_port, connection.host_port);
        if connection.is_over() {
            self.reset(ports);
        } else {
            self.connections.queue(name);
        }
    }

    /// Sends packets to the guest, for a bounded time. True if there may be more.
    fn give_packets(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
    ) -> Result<bool, QueueError> {
        let mut left = BUDGET;
        while left > 0 {
            if self.answers.is_empty() && !self.connections.any_queued() {
                return Ok(false);
            }
            if !queue.begin(memory, Direction::ToDriver)? {
                return Ok(false);
            }
            let room = queue.remaining().checked_sub(HEADER_SIZE);
            let room = room.ok_or(QueueError::TooShort)?;
            let Some((header, length)) = self.next_packet(room) else {
                continue;
            };
            left = left.saturating_sub(length.max(PACKET_COST));
            queue.write(memory, &header.encode())?;
            queue.write(memory, self.buffer.get(..length).unwrap_or_default())?;
            queue.finish(memory)?;
            self.counts.received_bytes += length as u64;
        }
        Ok(true)
    }

    /// The next packet for the guest, and the length of its payload in the buffer, at most `room` bytes. `None` if the connection whose turn it was has none.
    fn next_packet(&mut self, room: usize) -> Option<(Header, usize)> {
        if let Some(answer) = self.answers.pop_front() {
            return Some((answer, 0));
        }
        let buffer = self.buffer.get_mut(..room.min(PACKET_MAX))?;
        let name = self.connections.next_queued()?;
        let connection = self.connections.by_name(name)?;
        let packet = connection.next(buffer)?;
        let header = connection.header(self.cid, packet);
        // The other connections have their turns first.
        self.connections.queue(name);
        Some((header, packet.length))
    }

    fn serve(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
        host: &mut dyn Host<Stream = S>,
    ) -> Result<bool, QueueError> {
        let [receive, transmit, ..] = queues else {
            return Ok(false);
        };
        let taking = self.take_packets(transmit, memory, host)?;
        let was_full = self.answers.len() >= ANSWERS_MAX;
        let giving = self.give_packets(receive, memory)?;
        // Packets of the guest may have waited until answers were sent.
        let freed = was_full && self.answers.len() < ANSWERS_MAX;
        Ok(taking || giving || freed)
    }

    fn drop_connections(&mut self) {
        self.connections = Connections::default();
        self.answers.clear();
    }
}

impl<S: Stream> GivesUp for Vsock<S> {
    const NAME: &str = "virtio-vsock";

    fn has_given_up(&self) -> bool {
        self.broken
    }

    fn give_up(&mut self) -> &mut u64 {
        self.broken = true;
        self.drop_connections();
        &mut self.counts.queue_faults
    }
}

impl<S: Stream> VirtioDevice for Vsock<S> {
    fn device_id(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn features(&self) -> u64 {
        // Without a feature bit for socket types the device has streams only (section 5.10.3).
        QUEUE_FEATURES
    }

    fn queue_count(&self) -> usize {
        3
    }

    fn queue_size_max(&self) -> u16 {
        QUEUE_SIZE_MAX
    }

    fn configuration(&self) -> Vec<u8> {
        self.cid.to_le_bytes().to_vec()
    }

    fn reset(&mut self) {
        self.drop_connections();
        self.broken = false;
    }
}

impl<S: Stream> MmioTransport<Vsock<S>> {
    /// Moves packets for a bounded time. True if there is more to do after others have had their turn. Call it when the
    /// driver has notified a queue or the transport asks for it, and after [`ready`](Self::ready) and [`accept`](Self::accept).
    pub fn serve(&mut self, memory: &GuestMemory, host: &mut dyn Host<Stream = S>) -> bool {
        take_turn(self, memory, |device, queues| {
            device.serve(queues, memory, host)
        })
    }

    /// Reports events of the stream with this name. Does nothing if there is no such stream.
    pub fn ready(&mut self, name: u64, ready: Readiness) {
        let device = self.device_mut();
        if let Some(connection) = device.connections.by_name(name) {
            connection.note(ready);
            device.advance(name);
        }
    }

    /// Requests a connection from `stream` to the guest's port `port`. When the guest accepts it, `OK`, the host's port and a newline are
    /// written to `stream`. Otherwise `stream` is dropped.
    pub fn accept(&mut self, stream: S, port: u32) {
        let runs = self.running().is_some();
        let device = self.device_mut();
        if !runs || device.broken || !device.make_room() {
            device.counts.host_refused += 1;
            return;
        }
        let host_port = device.connections.free_host_port(port);
        let connection = Connection::of_host(stream, port, host_port);
        let name = connection.name();
        device.connections.add(connection);
        device.connections.queue(name);
    }
}
