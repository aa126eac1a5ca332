//! Unix sockets as the host's ends of connections.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use kvmprof_devices::virtio::vsock::{Host, Stream, Transfer};
use rustix::net::{SendFlags, Shutdown};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::connector::PortConnector;

/// A stream, and the name of its events.
#[derive(Debug)]
pub struct HostStream {
    name: u64,
    stream: UnixStream,
}

impl HostStream {
    /// The stream's socket.
    pub fn socket(&self) -> &UnixStream {
        &self.stream
    }
}

impl Stream for HostStream {
    fn name(&self) -> u64 {
        self.name
    }

    fn read(&mut self, buffer: &mut [u8]) -> Transfer {
        transferred(self.stream.read(buffer))
    }

    fn write(&mut self, bytes: &[u8]) -> Transfer {
        // If the other end is closed, this must be an error, and no signal.
        let sent = rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL);
        transferred(sent.map_err(Into::into))
    }

    fn end_writing(&mut self) {
        // Nothing is to be done if the stream is already closed.
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Write);
    }
}

fn transferred(result: io::Result<usize>) -> Transfer {
    match result {
        Ok(0) => Transfer::Ended,
        Ok(count) => Transfer::Bytes(count),
        // All signals are blocked on this thread, so nothing interrupts the call. If something did, the stream would end.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Transfer::Later,
        Err(_) => Transfer::Ended,
    }
}

/// Makes streams, and waits for all of them. Events are edge-triggered (epoll(7)): each comes once, so that those that aren't needed at the
/// moment don't have to be turned off.
pub struct Streams {
    epoll: Arc<Epoll>,
    last_name: u64,
    connector: Arc<PortConnector>,
}

impl Streams {
    /// Streams whose events come by `epoll`, with names above `last_name`. The guest connects by `connector`.
    pub fn new(epoll: Arc<Epoll>, last_name: u64, connector: Arc<PortConnector>) -> Self {
        Self {
            epoll,
            last_name,
            connector,
        }
    }

    /// Adds a non-blocking socket, and gives it a new name.
    pub fn add(&mut self, socket: OwnedFd) -> io::Result<HostStream> {
        self.last_name += 1;
        let interest =
            EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
        let event = EpollEvent::new(interest, self.last_name);
        let descriptor = socket.as_raw_fd();
        // Closing the socket removes it from the epoll.
        (self.epoll).ctl(ControlOperation::Add, descriptor, event)?;
        Ok(HostStream {
            name: self.last_name,
            stream: socket.into(),
        })
    }
}

impl Host for Streams {
    type Stream = HostStream;

    fn connect(&mut self, port: u32) -> Option<HostStream> {
        let stream = self.connector.connect(port).ok()?;
        self.add(stream.into()).ok()
    }
}
