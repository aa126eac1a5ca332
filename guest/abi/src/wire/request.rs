//! Frames from the client to kvmprof.

use super::header::{Fields, FrameWriter, Header};
use super::{HEADER_LENGTH, Kind, MAGIC, WireError};

/// A request and the tag for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFrame<'a> {
    /// Chosen by the client; different from those of its other waiting requests.
    pub tag: u32,
    /// The request.
    pub request: Request<'a>,
}

/// A request of which at least the header has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBegun {
    /// Its tag.
    pub tag: u32,
    /// Its kind.
    pub kind: Kind,
    /// Bytes of the whole frame.
    pub length: usize,
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Agree on a version; the first request of every connection.
    Hello {
        /// The lowest version of the client.
        lowest: u16,
        /// The highest version of the client.
        highest: u16,
    },
    /// Open a device.
    Open {
        /// One of [`super::device`].
        device: u16,
        /// The device's minor number.
        minor: u16,
        /// [`super::NONBLOCKING`] or 0.
        flags: u32,
    },
    /// Read from an open device.
    Read {
        /// The handle from the reply to open.
        handle: u32,
        /// Maximum number of bytes, limited to [`super::MAX_DATA`].
        limit: u32,
        /// [`super::NONBLOCKING`] or 0.
        flags: u32,
    },
    /// Write to an open device.
    Write {
        /// The handle from the reply to open.
        handle: u32,
        /// 0; no flags are defined yet.
        flags: u32,
        /// At most [`super::MAX_DATA`] bytes.
        data: &'a [u8],
    },
    /// Execute a device's own command.
    Ioctl {
        /// The handle from the reply to open.
        handle: u32,
        /// The command's number.
        command: u32,
        /// The third argument of ioctl(2) if it is a number.
        argument: i64,
        /// Maximum number of bytes for the client; longer results are cut off.
        limit: u32,
        /// The data that the third argument points to if it is a pointer: at most [`super::MAX_IOCTL_DATA`] bytes.
        data: &'a [u8],
    },
    /// Wait until a device is ready for one of the events.
    Poll {
        /// The handle from the reply to open.
        handle: u32,
        /// [`super::READABLE`], [`super::WRITABLE`].
        events: u32,
        /// [`super::NONBLOCKING`] or 0.
        flags: u32,
    },
    /// Cancel a read or poll that waits; it is answered with EINTR.
    Cancel {
        /// The tag of the request to cancel.
        tag: u32,
    },
    /// Close an open device.
    Close {
        /// The handle from the reply to open.
        handle: u32,
    },
}

impl Request<'_> {
    /// The kind of the request.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Hello { .. } => Kind::Hello,
            Self::Open { .. } => Kind::Open,
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::Ioctl { .. } => Kind::Ioctl,
            Self::Poll { .. } => Kind::Poll,
            Self::Cancel { .. } => Kind::Cancel,
            Self::Close { .. } => Kind::Close,
        }
    }

    fn handle(&self) -> u32 {
        match *self {
            Self::Hello { .. } | Self::Open { .. } | Self::Cancel { .. } => 0,
            Self::Read { handle, .. }
            | Self::Write { handle, .. }
            | Self::Ioctl { handle, .. }
            | Self::Poll { handle, .. }
            | Self::Close { handle } => handle,
        }
    }

    fn body_length(&self) -> usize {
        match self {
            Self::Hello { .. } => 16,
            Self::Open { .. } | Self::Read { .. } | Self::Poll { .. } => 8,
            Self::Write { data, .. } => 4 + data.len(),
            Self::Ioctl { data, .. } => 16 + data.len(),
            Self::Cancel { .. } => 4,
            Self::Close { .. } => 0,
        }
    }
}

impl<'a> RequestFrame<'a> {
    /// Bytes that [`encode`](Self::encode) writes.
    pub fn encoded_length(&self) -> usize {
        HEADER_LENGTH + self.request.body_length()
    }

    /// Writes the frame to the front of `buffer` and returns its length in bytes.
    ///
    /// # Errors
    /// [`WireError::BodyLength`] for too much data, [`WireError::BufferTooSmall`].
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, WireError> {
        let kind = self.request.kind();
        let header = Header {
            length: self.request.body_length(),
            tag: self.tag,
            kind: kind.request(),
            subject: self.request.handle(),
        };
        let mut writer = FrameWriter::new(buffer, header, &kind.request_body())?;
        match self.request {
            Request::Hello { lowest, highest } => {
                writer.put(&MAGIC);
                writer.put(&lowest.to_le_bytes());
                writer.put(&highest.to_le_bytes());
                writer.put(&[0; 4]);
            }
            Request::Open {
                device,
                minor,
                flags,
            } => {
                writer.put(&device.to_le_bytes());
                writer.put(&minor.to_le_bytes());
                writer.put(&flags.to_le_bytes());
            }
            Request::Read { limit, flags, .. } => {
                writer.put(&limit.to_le_bytes());
                writer.put(&flags.to_le_bytes());
            }
            Request::Write { flags, data, .. } => {
                writer.put(&flags.to_le_bytes());
                writer.put(data);
            }
            Request::Ioctl {
                command,
                argument,
                limit,
                data,
                ..
            } => {
                writer.put(&command.to_le_bytes());
                writer.put(&limit.to_le_bytes());
                writer.put(&argument.to_le_bytes());
                writer.put(data);
            }
            Request::Poll { events, flags, .. } => {
                writer.put(&events.to_le_bytes());
                writer.put(&flags.to_le_bytes());
            }
            Request::Cancel { tag } => writer.put(&tag.to_le_bytes()),
            Request::Close { .. } => {}
        }
        Ok(writer.finish())
    }

    /// The frame at the front of `bytes` and its length in bytes; `None` if more bytes are needed.
    ///
    /// # Errors
    /// Every [`WireError`] but `BufferTooSmall`, as soon as the header shows it, so that callers neither wait for nor
    /// allocate a body that will be refused.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, WireError> {
        let Some((header, kind)) = header(bytes)? else {
            return Ok(None);
        };
        let Some((body, length)) = header.body(bytes) else {
            return Ok(None);
        };
        let request = decode_body(kind, header.subject, body)?;
        Ok(Some((
            Self {
                tag: header.tag,
                request,
            },
            length,
        )))
    }

    /// The request whose header is at the front of `bytes`, and the length of its frame; the rest of the frame need not have arrived.
    /// `None` if the header is incomplete.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn begun(bytes: &[u8]) -> Result<Option<RequestBegun>, WireError> {
        let begun = header(bytes)?.map(|(header, kind)| RequestBegun {
            tag: header.tag,
            kind,
            length: HEADER_LENGTH.saturating_add(header.length),
        });
        Ok(begun)
    }
}

/// The header at the front of `bytes` if it is that of a request; `None` if it is incomplete.
fn header(bytes: &[u8]) -> Result<Option<(Header, Kind)>, WireError> {
    let Some(header) = Header::decode(bytes)? else {
        return Ok(None);
    };
    let kind = Kind::from_request(header.kind).ok_or(WireError::UnknownKind(header.kind))?;
    header.check_length(&kind.request_body())?;
    let takes_handle = !matches!(kind, Kind::Hello | Kind::Open | Kind::Cancel);
    if !takes_handle && header.subject != 0 {
        return Err(WireError::Reserved { kind: header.kind });
    }
    Ok(Some((header, kind)))
}

fn decode_body(kind: Kind, handle: u32, body: &[u8]) -> Result<Request<'_>, WireError> {
    let mut fields = Fields(body);
    Ok(match kind {
        Kind::Hello => {
            if fields.bytes() != MAGIC {
                return Err(WireError::Magic);
            }
            // Further fields are for later versions, which the server's reply excludes.
            Request::Hello {
                lowest: fields.u16(),
                highest: fields.u16(),
            }
        }
        Kind::Open => Request::Open {
            device: fields.u16(),
            minor: fields.u16(),
            flags: fields.u32(),
        },
        Kind::Read => Request::Read {
            handle,
            limit: fields.u32(),
            flags: fields.u32(),
        },
        Kind::Write => Request::Write {
            handle,
            flags: fields.u32(),
            data: fields.rest(),
        },
        Kind::Ioctl => {
            let command = fields.u32();
            let limit = fields.u32();
            Request::Ioctl {
                handle,
                command,
                argument: fields.i64(),
                limit,
                data: fields.rest(),
            }
        }
        Kind::Poll => Request::Poll {
            handle,
            events: fields.u32(),
            flags: fields.u32(),
        },
        Kind::Cancel => Request::Cancel { tag: fields.u32() },
        Kind::Close => Request::Close { handle },
    })
}
