//! One client.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use event_manager::EventSet;
use kvmprof_devices::endpoint::{Backend, Client, Endpoint, EndpointError, HelloInfo, TURN_TIME};
use kvmprof_recording::QueueBudget;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Maximum number of bytes that are taken from a client at a time, so that a client that sends much doesn't delay others.
const CHUNK: usize = 64 << 10;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionEnd {
    /// The client closed it.
    #[error("Client closed the connection")]
    ByClient,
    /// The client broke the protocol.
    #[error("Client broke the protocol")]
    Protocol(#[from] EndpointError),
    /// It made room for another client.
    #[error("Client made room for another one")]
    GaveWay,
    /// The socket failed.
    #[error("Socket failed")]
    Socket(#[source] io::Error),
}

/// A client's socket, which doesn't block, and the state of its conversation.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    endpoint: Endpoint,
    /// Bytes that the socket has taken.
    sent: u64,
    /// When the client last sent something; before that, when it connected.
    last_heard: Instant,
}

impl Connection {
    /// A connection of `client` by `socket`. Data that waits beyond the connection's own room is in `room`.
    pub fn new(socket: OwnedFd, client: Client, info: HelloInfo, room: &Arc<QueueBudget>) -> Self {
        let endpoint = Endpoint::within(client, info, room);
        Self {
            socket,
            endpoint,
            sent: 0,
            last_heard: Instant::now(),
        }
    }

    /// The client, which decides what the connection may do.
    pub fn client(&self) -> Client {
        self.endpoint.client()
    }

    /// Since when a client that has no open device and no waiting request has sent nothing. Clients that haven't said hello sort before
    /// all others. `None` for a client that uses the guest.
    pub fn idle_since(&self) -> Option<(bool, Instant)> {
        let is_idle = self.endpoint.open_devices() == 0 && self.endpoint.outstanding() == 0;
        is_idle.then(|| (self.endpoint.is_greeted(), self.last_heard))
    }

    /// Bytes that the client was sent.
    pub fn bytes_sent(&self) -> u64 {
        self.sent
    }

    /// The events that the connection waits for.
    pub fn interest(&self) -> EventSet {
        let mut interest = EventSet::empty();
        interest.set(EventSet::IN, self.endpoint.wants_input());
        interest.set(EventSet::OUT, !self.endpoint.output().is_empty());
        interest
    }

    /// A turn of all clients begins.
    pub fn begin_turn(&mut self) {
        self.endpoint.begin_turn();
        self.endpoint.limit_turn(TURN_TIME);
    }

    /// True if requests wait for nothing but the next turn.
    pub fn waits_for_turn(&self) -> bool {
        self.endpoint.waits_for_turn()
    }

    /// Handles `events`.
    pub fn handle(
        &mut self,
        events: EventSet,
        backend: &mut dyn Backend,
    ) -> Result<(), ConnectionEnd> {
        if events.contains(EventSet::IN) && self.endpoint.wants_input() {
            self.receive(backend)?;
        } else if events.intersects(EventSet::HANG_UP | EventSet::ERROR) {
            // The client has no request that is still to be answered.
            return Err(ConnectionEnd::ByClient);
        }
        self.advance(backend)
    }

    /// Retries the client's waiting requests, and sends the output.
    pub fn advance(&mut self, backend: &mut dyn Backend) -> Result<(), ConnectionEnd> {
        loop {
            self.endpoint.wake(backend)?;
            // The loop ends: the answers are bounded by the input and the requests that the endpoint holds already.
            if !self.send()? {
                return Ok(());
            }
        }
    }

    /// Closes the client's devices.
    pub fn close(mut self, backend: &mut dyn Backend) {
        self.endpoint.close(backend);
    }

    fn receive(&mut self, backend: &mut dyn Backend) -> Result<(), ConnectionEnd> {
        let mut chunk = [0; CHUNK];
        match rustix::net::recv(&self.socket, &mut chunk[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(ConnectionEnd::ByClient),
            Ok((_, length)) => {
                self.last_heard = Instant::now();
                let bytes = chunk.get(..length).unwrap_or_default();
                Ok(self.endpoint.receive(bytes, backend)?)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(ConnectionEnd::from(errno)),
        }
    }

    /// Sends as much as the socket accepts. True if it accepted any bytes.
    fn send(&mut self) -> Result<bool, ConnectionEnd> {
        let mut sent = false;
        while !self.endpoint.output().is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, self.endpoint.output(), flags) {
                Ok(count) => {
                    self.endpoint.consume(count);
                    self.sent += count as u64;
                    sent = true;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ConnectionEnd::from(errno)),
            }
        }
        Ok(sent)
    }
}

impl From<Errno> for ConnectionEnd {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::ByClient,
            errno => Self::Socket(errno.into()),
        }
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
