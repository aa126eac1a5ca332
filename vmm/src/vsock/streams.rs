//! Unix sockets as the host's ends of connections.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvmprof_devices::virtio::vsock::{Host, Stream, Transfer};
use rustix::net::{SendFlags, Shutdown};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::connector::{SocketConnector, connect};

/// A stream, whose events have its name.
#[derive(Debug)]
pub struct HostStream {
    name: u64,
    stream: UnixStream,
}

impl HostStream {
    /// The stream itself.
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
        // Without a signal if the other end is gone.
        let sent = rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL);
        transferred(sent.map_err(Into::into))
    }

    fn end_writing(&mut self) {
        // A stream that is gone already needs no end.
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Write);
    }
}

fn transferred(result: io::Result<usize>) -> Transfer {
    match result {
        Ok(0) => Transfer::Ended,
        Ok(count) => Transfer::Bytes(count),
        // Every signal is blocked on this thread, so that nothing interrupts; if it did, the other end would tell.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Transfer::Later,
        Err(_) => Transfer::Ended,
    }
}

/// Makes streams, and waits for all of them. A stream's event comes once (epoll(7), edge-triggered), so that events that aren't wanted
/// at the moment needn't be turned off.
pub struct Streams {
    epoll: Arc<Epoll>,
    last_name: u64,
    path: PathBuf,
    /// Who connects, if this process may not.
    connector: Option<Arc<SocketConnector>>,
}

impl Streams {
    /// Makes streams whose events come by `epoll` with names above `last_name`. The guest's connections lead to `path` with the port
    /// after it, and are made by `connector` if there is one.
    pub fn new(
        epoll: Arc<Epoll>,
        last_name: u64,
        path: &Path,
        connector: Option<Arc<SocketConnector>>,
    ) -> Self {
        Self {
            epoll,
            last_name,
            path: path.to_owned(),
            connector,
        }
    }

    /// Adds a socket that doesn't block, and gives it a new name.
    pub fn add(&mut self, socket: OwnedFd) -> io::Result<HostStream> {
        self.last_name += 1;
        let interest =
            EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
        let event = EpollEvent::new(interest, self.last_name);
        let descriptor = socket.as_raw_fd();
        // Its events end when it is closed.
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
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        let stream = connect(self.connector.as_deref(), Path::new(&path)).ok()?;
        self.add(stream.into()).ok()
    }
}
