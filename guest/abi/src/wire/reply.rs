//! Frames from kvmprof to the client.

use core::ops::RangeInclusive;

use super::header::{Fields, FrameWriter, Header};
use super::{
    HEADER_LENGTH, Kind, MAX_DATA, MAX_HANDLES, MAX_IOCTL_DATA, MAX_OUTSTANDING, WireError,
};
use crate::errno::Errno;

/// A reply to the request with this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyFrame<'a> {
    /// The request's tag.
    pub tag: u32,
    /// The request's kind.
    pub kind: Kind,
    /// The result. An `Ok` is of the frame's kind.
    pub result: Result<Reply<'a>, Errno>,
}

/// The result of a successful request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The agreed version, the server's limits and the guest's properties.
    Hello(HelloReply),
    /// The device is open now.
    Open {
        /// The device's handle for later requests; never 0.
        handle: u32,
    },
    /// The data; empty is the end of file.
    Read {
        /// At most as many bytes as requested.
        data: &'a [u8],
    },
    /// The data was written.
    Write {
        /// Number of bytes.
        count: u32,
    },
    /// The result of the command.
    Ioctl {
        /// The return value of ioctl(2).
        value: i64,
        /// The data that the command stores through its argument.
        data: &'a [u8],
    },
    /// The events that would not block.
    Poll {
        /// [`super::READABLE`], [`super::WRITABLE`], [`super::HANG_UP`].
        events: u32,
    },
    /// The request with this tag no longer waits.
    Cancel,
    /// The device is closed.
    Close,
}

/// The reply to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The version for this connection; 0 if client and server have none in common.
    pub version: u16,
    /// The lowest version of the server.
    pub lowest: u16,
    /// The highest version of the server.
    pub highest: u16,
    /// Maximum number of bytes of data in a read or a write.
    pub max_data: u32,
    /// Maximum number of bytes of data of an ioctl in either direction.
    pub max_ioctl_data: u32,
    /// Maximum number of waiting requests.
    pub max_outstanding: u32,
    /// Maximum number of open devices.
    pub max_handles: u32,
    /// Virtual CPUs of the guest.
    pub vcpus: u32,
    /// The configured rate of the profiling clock in Hz; 0 without a clock.
    pub hz: u32,
}

impl HelloReply {
    /// The reply of this version's server to a client with versions `lowest` to `highest`.
    pub fn answer(lowest: u16, highest: u16, vcpus: u32, hz: u32) -> Self {
        let known = (lowest..=highest).contains(&super::VERSION);
        let limit = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
        Self {
            version: if known { super::VERSION } else { 0 },
            lowest: super::VERSION,
            highest: super::VERSION,
            max_data: limit(MAX_DATA),
            max_ioctl_data: limit(MAX_IOCTL_DATA),
            max_outstanding: limit(MAX_OUTSTANDING),
            max_handles: limit(MAX_HANDLES),
            vcpus,
            hz,
        }
    }
}

impl Reply<'_> {
    fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Open { .. } => Kind::Open,
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::Ioctl { .. } => Kind::Ioctl,
            Self::Poll { .. } => Kind::Poll,
            Self::Cancel => Kind::Cancel,
            Self::Close => Kind::Close,
        }
    }

    fn body_length(&self) -> usize {
        match self {
            Self::Hello(_) => 32,
            Self::Open { .. } | Self::Write { .. } | Self::Poll { .. } => 4,
            Self::Read { data } => data.len(),
            Self::Ioctl { data, .. } => 8 + data.len(),
            Self::Cancel | Self::Close => 0,
        }
    }
}

impl<'a> ReplyFrame<'a> {
    /// A successful reply.
    pub fn success(tag: u32, reply: Reply<'a>) -> Self {
        Self {
            tag,
            kind: reply.kind(),
            result: Ok(reply),
        }
    }

    /// The reply to a request of kind `kind` that failed with `errno`.
    pub fn failure(tag: u32, kind: Kind, errno: Errno) -> Self {
        Self {
            tag,
            kind,
            result: Err(errno),
        }
    }

    /// Bytes that [`encode`](Self::encode) writes.
    pub fn encoded_length(&self) -> usize {
        HEADER_LENGTH + self.result.as_ref().map_or(0, Reply::body_length)
    }

    /// Writes the frame to the front of `buffer` and returns its length in bytes.
    ///
    /// # Errors
    /// [`WireError::BodyLength`] for too much data, [`WireError::BufferTooSmall`].
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, WireError> {
        let (kind, errno, allowed) = match &self.result {
            Ok(reply) => (reply.kind(), 0, reply.kind().reply_body()),
            Err(errno) => (self.kind, errno.0, FAILURE_BODY),
        };
        let header = Header {
            length: self.result.as_ref().map_or(0, Reply::body_length),
            tag: self.tag,
            kind: kind.reply(),
            subject: errno.cast_unsigned(),
        };
        let mut writer = FrameWriter::new(buffer, header, &allowed)?;
        match &self.result {
            Ok(Reply::Hello(hello)) => put_hello(&mut writer, hello),
            Ok(Reply::Open { handle }) => writer.put(&handle.to_le_bytes()),
            Ok(Reply::Read { data }) => writer.put(data),
            Ok(Reply::Write { count }) => writer.put(&count.to_le_bytes()),
            Ok(Reply::Ioctl { value, data }) => {
                writer.put(&value.to_le_bytes());
                writer.put(data);
            }
            Ok(Reply::Poll { events }) => writer.put(&events.to_le_bytes()),
            Ok(Reply::Cancel | Reply::Close) | Err(_) => {}
        }
        Ok(writer.finish())
    }

    /// The frame at the front of `bytes` and its length in bytes; `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`WireError::UnknownKind`], [`WireError::BodyLength`], [`WireError::Reserved`], as soon as
    /// the header shows it.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, WireError> {
        let Some(header) = Header::decode(bytes)? else {
            return Ok(None);
        };
        let kind = Kind::from_reply(header.kind).ok_or(WireError::UnknownKind(header.kind))?;
        let errno = header.subject.cast_signed();
        let allowed = if errno == 0 {
            kind.reply_body()
        } else {
            FAILURE_BODY
        };
        header.check_length(&allowed)?;
        let Some((body, length)) = header.body(bytes) else {
            return Ok(None);
        };
        let result = match errno {
            0 => Ok(decode_body(kind, body)),
            errno => Err(Errno(errno)),
        };
        Ok(Some((
            Self {
                tag: header.tag,
                kind,
                result,
            },
            length,
        )))
    }
}

/// A reply with an error has no body.
const FAILURE_BODY: RangeInclusive<usize> = 0..=0;

fn put_hello(writer: &mut FrameWriter<'_>, hello: &HelloReply) {
    for half in [hello.version, hello.lowest, hello.highest, 0] {
        writer.put(&half.to_le_bytes());
    }
    for word in [
        hello.max_data,
        hello.max_ioctl_data,
        hello.max_outstanding,
        hello.max_handles,
        hello.vcpus,
        hello.hz,
    ] {
        writer.put(&word.to_le_bytes());
    }
}

fn decode_body(kind: Kind, body: &[u8]) -> Reply<'_> {
    let mut fields = Fields(body);
    match kind {
        Kind::Hello => Reply::Hello(decode_hello(fields)),
        Kind::Open => Reply::Open {
            handle: fields.u32(),
        },
        Kind::Read => Reply::Read {
            data: fields.rest(),
        },
        Kind::Write => Reply::Write {
            count: fields.u32(),
        },
        Kind::Ioctl => Reply::Ioctl {
            value: fields.i64(),
            data: fields.rest(),
        },
        Kind::Poll => Reply::Poll {
            events: fields.u32(),
        },
        Kind::Cancel => Reply::Cancel,
        Kind::Close => Reply::Close,
    }
}

fn decode_hello(mut fields: Fields<'_>) -> HelloReply {
    let version = fields.u16();
    let lowest = fields.u16();
    let highest = fields.u16();
    fields.u16();
    HelloReply {
        version,
        lowest,
        highest,
        max_data: fields.u32(),
        max_ioctl_data: fields.u32(),
        max_outstanding: fields.u32(),
        max_handles: fields.u32(),
        vcpus: fields.u32(),
        hz: fields.u32(),
    }
}
