//! Frames over the port, without blocking.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kvmprof_abi::wire::{
    HEADER_LENGTH, HelloReply, MAX_FRAME, Reply, ReplyFrame, Request, RequestFrame, VERSION,
    WireError,
};

/// Maximum number of bytes received at a time.
const CHUNK: usize = 64 << 10;
/// Number of bytes waiting to be sent, from which on no more requests should be made.
const FULL: usize = 2 * MAX_FRAME;
/// Maximum number of bytes that an earlier connection may have left in the port.
const REMAINS_MAX: usize = 2 * MAX_FRAME;

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The other side has gone.
    #[error("Port was closed by kvmprof")]
    Closed,
    /// The port failed.
    #[error("Port failed")]
    Io(#[from] io::Error),
    /// The received bytes violate the protocol.
    #[error("Port carries something else than kvmprof's protocol")]
    Malformed(#[from] WireError),
    /// The versions have none in common.
    #[error("kvmprof speaks versions {lowest} to {highest} of the protocol, this pcsd {VERSION}")]
    Version {
        /// kvmprof's lowest version.
        lowest: u16,
        /// kvmprof's highest version.
        highest: u16,
    },
    /// kvmprof sent a reply for which there is no request.
    #[error("kvmprof sent a reply to no request")]
    Unasked,
    /// The hello had no answer.
    #[error("Port carries no answer to the hello")]
    NoHello,
}

/// The state of a connection.
#[derive(Debug)]
enum Phase {
    /// The hello has been sent with this tag; `skipped` bytes were skipped since.
    Hello { tag: u32, skipped: usize },
    /// The version has been agreed on.
    Ready,
}

/// The bytes that wait to be sent.
#[derive(Debug, Default)]
pub struct Outgoing(VecDeque<u8>);

impl Outgoing {
    /// Adds a request to the queue.
    ///
    /// # Errors
    /// If it doesn't fit into a frame.
    pub fn queue(&mut self, frame: &RequestFrame<'_>) -> Result<(), WireError> {
        let mut bytes = vec![0; frame.encoded_length()];
        let length = frame.encode(&mut bytes)?;
        self.0.extend(bytes.iter().take(length));
        Ok(())
    }

    /// Whether no bytes wait.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the other side receives too slowly for more requests.
    pub fn is_full(&self) -> bool {
        self.0.len() >= FULL
    }
}

/// A connection to kvmprof.
#[derive(Debug)]
pub struct Connection {
    port: OwnedFd,
    phase: Phase,
    received: Vec<u8>,
    /// The end of the part of `received` that has been decoded.
    taken: usize,
}

impl Connection {
    /// Starts a connection over an open port, with nothing but a hello in `outgoing`. `tag` is the hello's tag; it should differ from those
    /// of earlier connections, whose replies may still be in the port.
    ///
    /// # Errors
    /// If the port fails at once.
    pub fn start(
        port: OwnedFd,
        tag: u32,
        outgoing: &mut Outgoing,
    ) -> Result<Self, ConnectionError> {
        let mut connection = Self {
            port,
            phase: Phase::Hello { tag, skipped: 0 },
            received: Vec::new(),
            taken: 0,
        };
        *outgoing = Outgoing::default();
        outgoing.queue(&RequestFrame {
            tag,
            request: Request::Hello {
                lowest: VERSION,
                highest: VERSION,
            },
        })?;
        connection.flush(outgoing)?;
        Ok(connection)
    }

    /// Whether the hello has been answered.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Sends as many bytes as the port takes without blocking.
    ///
    /// # Errors
    /// If the port fails.
    pub fn flush(&mut self, outgoing: &mut Outgoing) -> Result<(), ConnectionError> {
        while !outgoing.is_empty() {
            let (front, _) = outgoing.0.as_slices();
            match rustix::io::write(&self.port, front) {
                Ok(0) => return Ok(()),
                Ok(count) => drop(outgoing.0.drain(..count)),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE) => return Err(ConnectionError::Closed),
                Err(error) => return Err(ConnectionError::Io(error.into())),
            }
        }
        Ok(())
    }

    /// Receives the available bytes, with one read.
    ///
    /// # Errors
    /// If the other side has gone, or the port fails.
    pub fn receive(&mut self) -> Result<(), ConnectionError> {
        self.received.drain(..self.taken);
        self.taken = 0;
        let before = self.received.len();
        self.received.resize(before + CHUNK, 0);
        let room = self.received.get_mut(before..).unwrap_or_default();
        let result = rustix::io::read(&self.port, room);
        self.received
            .truncate(before + result.as_ref().copied().unwrap_or(0));
        match result {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
            Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::NODEV) => {
                Err(ConnectionError::Closed)
            }
            Err(error) => Err(ConnectionError::Io(error.into())),
        }
    }

    /// The answer to the hello; `None` until it has arrived.
    ///
    /// Bytes that an earlier connection has left in the port are skipped, even half a frame.
    ///
    /// # Errors
    /// If there is no common version, or too much arrives before the answer.
    pub fn hello(&mut self) -> Result<Option<HelloReply>, ConnectionError> {
        let Phase::Hello { tag, skipped } = &mut self.phase else {
            return Ok(None);
        };
        loop {
            let rest = self.received.get(self.taken..).unwrap_or_default();
            if rest.len() < HEADER_LENGTH {
                return Ok(None);
            }
            let reply = match ReplyFrame::decode(rest) {
                Ok(Some((frame, length))) if frame.tag == *tag => match frame.result {
                    Ok(Reply::Hello(hello)) => Some((hello, length)),
                    _ => None,
                },
                // Only the answer to this hello is waited for.
                Ok(None) if is_hello(rest, *tag) => return Ok(None),
                _ => None,
            };
            if let Some((hello, length)) = reply {
                self.taken += length;
                if hello.version != VERSION {
                    return Err(ConnectionError::Version {
                        lowest: hello.lowest,
                        highest: hello.highest,
                    });
                }
                self.phase = Phase::Ready;
                return Ok(Some(hello));
            }
            self.taken += 1;
            *skipped += 1;
            if *skipped > REMAINS_MAX {
                return Err(ConnectionError::NoHello);
            }
        }
    }

    /// The next reply; `None` until it has arrived.
    ///
    /// # Errors
    /// If the received bytes aren't a reply.
    pub fn next_reply(&mut self) -> Result<Option<ReplyFrame<'_>>, WireError> {
        let rest = self.received.get(self.taken..).unwrap_or_default();
        Ok(ReplyFrame::decode(rest)?.map(|(frame, length)| {
            self.taken += length;
            frame
        }))
    }
}

/// Whether `bytes` begin like the answer to the hello with this tag (WIRE.md, Frames).
fn is_hello(bytes: &[u8], tag: u32) -> bool {
    const HELLO_REPLY: u16 = 0x8001;
    bytes.get(4..8) == Some(&tag.to_le_bytes())
        && bytes.get(8..10) == Some(&HELLO_REPLY.to_le_bytes())
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use kvmprof_abi::errno::Errno;
    use kvmprof_abi::wire::Kind;

    use super::*;

    const TAG: u32 = 0x1234_5678;

    fn pair() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let connection = Connection::start(ours.into(), TAG, &mut Outgoing::default());
        (connection.unwrap(), theirs)
    }

    fn encoded(frame: ReplyFrame<'_>) -> Vec<u8> {
        let mut bytes = vec![0; frame.encoded_length()];
        frame.encode(&mut bytes).unwrap();
        bytes
    }

    fn hello(version: u16) -> Vec<u8> {
        let reply = HelloReply::answer(version, version, 2, 100);
        encoded(ReplyFrame::success(TAG, Reply::Hello(reply)))
    }

    fn come(connection: &mut Connection, theirs: &mut UnixStream, bytes: &[u8]) {
        theirs.write_all(bytes).unwrap();
        connection.receive().unwrap();
    }

    #[test]
    fn a_hello_is_sent_and_answered() {
        let (mut connection, mut theirs) = pair();
        let mut sent = [0; 32];
        theirs.read_exact(&mut sent).unwrap();
        let (frame, _) = RequestFrame::decode(&sent).unwrap().unwrap();
        assert_eq!(frame.tag, TAG);
        assert!(matches!(frame.request, Request::Hello { .. }));
        // Byte by byte, to test every boundary.
        for byte in hello(1) {
            assert!(connection.hello().unwrap().is_none());
            assert!(!connection.is_ready());
            come(&mut connection, &mut theirs, &[byte]);
        }
        assert_eq!(connection.hello().unwrap().unwrap().vcpus, 2);
        assert!(connection.is_ready());
    }

    #[test]
    fn stale_replies_are_skipped() {
        let (mut connection, mut theirs) = pair();
        let old = encoded(ReplyFrame::success(9, Reply::Read { data: &[0x80; 99] }));
        let failure = encoded(ReplyFrame::failure(TAG, Kind::Read, Errno::EIO));
        // The end of a frame, whole frames, a reply to another request with the hello's tag, and the answer to the hello.
        let bytes = [&old[31..], &old, &failure, &hello(1), &old].concat();
        come(&mut connection, &mut theirs, &bytes);
        assert!(connection.hello().unwrap().is_some());
        let next = connection.next_reply().unwrap().unwrap();
        assert_eq!(next.tag, 9);
        assert!(connection.next_reply().unwrap().is_none());
    }

    #[test]
    fn other_versions_and_garbage_end_the_connection() {
        let (mut connection, mut theirs) = pair();
        come(&mut connection, &mut theirs, &hello(7));
        let other = connection.hello();
        assert!(matches!(other, Err(ConnectionError::Version { .. })));
        let (mut connection, mut theirs) = pair();
        let mut total = 0;
        let error = loop {
            come(&mut connection, &mut theirs, &[7; 4096]);
            total += 4096;
            match connection.hello() {
                Ok(None) => assert!(total < REMAINS_MAX + 8192),
                Ok(Some(_)) => panic!("noise was taken for a hello"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ConnectionError::NoHello));
        drop(theirs);
        assert!(matches!(connection.receive(), Err(ConnectionError::Closed)));
    }
}
