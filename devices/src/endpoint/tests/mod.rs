//! Tests of an endpoint with a test device: its bytes count up, so that lost, repeated or swapped bytes are noticed.

use std::collections::BTreeMap;
use std::task::Poll;

use super::*;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Kind, Reply, ReplyFrame, Request, RequestFrame, VERSION};

mod properties;
mod requests;
mod room;

/// Only one client may have it open.
const EXCLUSIVE: u16 = 1;
/// Any number of clients may have it open.
const COMMON: u16 = 2;

/// A backend with devices that give the bytes 0, 1, 2, ... up to the released number.
#[derive(Default)]
struct Bench {
    open: BTreeMap<Handle, u16>,
    last: u32,
    released: usize,
    given: usize,
    ended: bool,
    /// Only reads are executed.
    is_busy: bool,
}

fn counting(from: usize, length: usize) -> Vec<u8> {
    (from..from + length)
        .map(|position| u8::try_from(position % 251).unwrap())
        .collect()
}

impl Backend for Bench {
    fn open(&mut self, _client: Client, device: u16, minor: u16) -> Result<Handle, Errno> {
        if minor != 0 {
            return Err(Errno::ENXIO);
        }
        match device {
            EXCLUSIVE if self.open.values().any(|open| *open == EXCLUSIVE) => Err(Errno::EBUSY),
            EXCLUSIVE | COMMON => {
                self.last += 1;
                self.open.insert(Handle(self.last), device);
                Ok(Handle(self.last))
            }
            _ => Err(Errno::ENODEV),
        }
    }

    fn opened(&mut self, handle: Handle) -> Poll<Result<(), Errno>> {
        assert!(self.open.contains_key(&handle));
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
        assert!(self.open.contains_key(&handle));
        let count = limit.min(self.released - self.given);
        if count == 0 && !self.ended {
            return Poll::Ready(Err(Errno::EAGAIN));
        }
        let data = counting(self.given, count);
        self.given += count;
        Poll::Ready(Ok(data))
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        assert!(self.open.contains_key(&handle));
        Ok(bytes.len())
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>> {
        assert!(self.open.contains_key(&handle));
        if self.is_busy {
            return Poll::Pending;
        }
        match command {
            // Releases `argument` bytes.
            1 => self.released += usize::try_from(argument.clamp(0, 1 << 20)).unwrap(),
            2 => self.ended = true,
            3 => {
                return Poll::Ready(Ok(IoctlReply {
                    value: argument,
                    data: data.iter().rev().copied().collect(),
                }));
            }
            _ => return Poll::Ready(Err(Errno::EINVAL)),
        }
        Poll::Ready(Ok(IoctlReply::default()))
    }

    fn poll(&mut self, handle: Handle) -> Readiness {
        assert!(self.open.contains_key(&handle));
        Readiness {
            readable: self.released > self.given || self.ended,
            writable: false,
            hang_up: self.ended,
        }
    }

    fn close(&mut self, handle: Handle) -> Poll<()> {
        if self.is_busy {
            return Poll::Pending;
        }
        assert!(self.open.remove(&handle).is_some(), "closed twice");
        Poll::Ready(())
    }
}

fn encode(tag: u32, request: Request<'_>) -> Vec<u8> {
    let frame = RequestFrame { tag, request };
    let mut bytes = vec![0; frame.encoded_length()];
    let length = frame.encode(&mut bytes).unwrap();
    assert_eq!(length, bytes.len());
    bytes
}

const HELLO: Request<'static> = Request::Hello {
    lowest: VERSION,
    highest: VERSION,
};

/// A reply that owns its bytes.
#[derive(Debug, PartialEq, Eq)]
struct OwnedReply {
    tag: u32,
    kind: Kind,
    /// Errno, or the returned number or data.
    result: Result<(i64, Vec<u8>), Errno>,
}

fn got(tag: u32, kind: Kind, value: i64, data: &[u8]) -> OwnedReply {
    let result = Ok((value, data.to_vec()));
    OwnedReply { tag, kind, result }
}

fn failed(tag: u32, kind: Kind, errno: Errno) -> OwnedReply {
    let result = Err(errno);
    OwnedReply { tag, kind, result }
}

/// A request to open minor 0 of `device`.
fn open_request(device: u16, flags: u32) -> Request<'static> {
    Request::Open {
        device,
        minor: 0,
        flags,
    }
}

fn read_request(handle: u32, limit: u32, flags: u32) -> Request<'static> {
    Request::Read {
        handle,
        limit,
        flags,
    }
}

/// An ioctl that returns at most `limit` bytes of data.
fn ioctl(handle: u32, (command, argument): (u32, i64), limit: u32, data: &[u8]) -> Request<'_> {
    Request::Ioctl {
        handle,
        command,
        argument,
        limit,
        data,
    }
}

/// Takes all replies from the endpoint.
fn replies(endpoint: &mut Endpoint) -> Vec<OwnedReply> {
    let mut all = Vec::new();
    let bytes = endpoint.output().to_vec();
    endpoint.consume(bytes.len());
    let mut rest = &bytes[..];
    while let Some((frame, length)) = ReplyFrame::decode(rest).unwrap() {
        rest = &rest[length..];
        let result = frame.result.map(|reply| match reply {
            Reply::Hello(hello) => (hello.version.into(), Vec::new()),
            Reply::Open { handle: number }
            | Reply::Write { count: number }
            | Reply::Poll { events: number } => (number.into(), Vec::new()),
            Reply::Read { data } => (0, data.to_vec()),
            Reply::Ioctl { value, data } => (value, data.to_vec()),
            Reply::Cancel | Reply::Close => (0, Vec::new()),
        });
        let (tag, kind) = (frame.tag, frame.kind);
        all.push(OwnedReply { tag, kind, result });
    }
    assert!(rest.is_empty(), "the output is cut within a frame");
    all
}

/// An endpoint with its backend, after the hello.
struct Conversation {
    endpoint: Endpoint,
    bench: Bench,
}

impl Conversation {
    fn new() -> Self {
        let mut talk = Self {
            endpoint: Endpoint::new(Client::Host, HelloInfo::default()),
            bench: Bench::default(),
        };
        let hello = talk.say(0, HELLO);
        assert_eq!(hello, [got(0, Kind::Hello, 1, &[])]);
        talk
    }

    /// A conversation with this device open, and its handle.
    fn opened(device: u16) -> (Self, u32) {
        let mut talk = Self::new();
        let handle = talk.open(device, 0);
        (talk, handle)
    }

    fn try_say(
        &mut self,
        tag: u32,
        request: Request<'_>,
    ) -> Result<Vec<OwnedReply>, EndpointError> {
        self.endpoint.begin_turn();
        self.endpoint
            .receive(&encode(tag, request), &mut self.bench)?;
        Ok(replies(&mut self.endpoint))
    }

    fn say(&mut self, tag: u32, request: Request<'_>) -> Vec<OwnedReply> {
        self.try_say(tag, request).unwrap()
    }

    fn open(&mut self, device: u16, flags: u32) -> u32 {
        let replies = self.say(99, open_request(device, flags));
        let Ok((handle, _)) = &replies[0].result else {
            panic!("{replies:?}");
        };
        u32::try_from(*handle).unwrap()
    }

    fn read(&mut self, tag: u32, handle: u32, limit: u32) -> Vec<OwnedReply> {
        self.say(tag, read_request(handle, limit, 0))
    }

    fn release(&mut self, count: usize) -> Vec<OwnedReply> {
        self.bench.released += count;
        self.endpoint.wake(&mut self.bench).unwrap();
        replies(&mut self.endpoint)
    }
}
