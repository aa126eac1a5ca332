//! The header of frames, and the fields after it.

use core::ops::RangeInclusive;

use super::{MAX_BODY, MAX_DATA, MAX_HELLO, MAX_IOCTL_DATA, WireError};

/// Bytes of the header.
pub const HEADER_LENGTH: usize = 16;

/// Set in the kind of a reply.
const REPLY: u16 = 0x8000;

/// The kind of a request; the kind of its reply is the same with the highest bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Agree on a version; the first request of every connection.
    Hello = 1,
    /// Open a device.
    Open = 2,
    /// Read from an open device.
    Read = 3,
    /// Write to an open device.
    Write = 4,
    /// Execute a device's own command.
    Ioctl = 5,
    /// Wait until a device is ready.
    Poll = 6,
    /// Cancel a request that waits.
    Cancel = 7,
    /// Close an open device.
    Close = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Hello,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Ioctl,
        Self::Poll,
        Self::Cancel,
        Self::Close,
    ];

    /// The number in the header of a request.
    pub(super) const fn request(self) -> u16 {
        self as u16
    }

    /// The number in the header of a reply.
    pub(super) const fn reply(self) -> u16 {
        self as u16 | REPLY
    }

    pub(super) fn from_request(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.request() == number)
    }

    pub(super) fn from_reply(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.reply() == number)
    }

    /// The allowed lengths of a request's body.
    pub(super) const fn request_body(self) -> RangeInclusive<usize> {
        match self {
            Self::Hello => 16..=MAX_HELLO,
            Self::Open | Self::Read | Self::Poll => 8..=8,
            Self::Write => 4..=MAX_BODY,
            Self::Ioctl => 16..=16 + MAX_IOCTL_DATA,
            Self::Cancel => 4..=4,
            Self::Close => 0..=0,
        }
    }

    /// The allowed lengths of the body of a reply without an error.
    pub(super) const fn reply_body(self) -> RangeInclusive<usize> {
        match self {
            Self::Hello => 32..=MAX_HELLO,
            Self::Open | Self::Write | Self::Poll => 4..=4,
            Self::Read => 0..=MAX_DATA,
            Self::Ioctl => 8..=8 + MAX_IOCTL_DATA,
            Self::Cancel | Self::Close => 0..=0,
        }
    }
}

/// A header as it is in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of the body.
    pub length: usize,
    /// The request's number, chosen by the client.
    pub tag: u32,
    /// Kind with the direction's bit.
    pub kind: u16,
    /// A handle in requests, an errno in replies.
    pub subject: u32,
}

impl Header {
    /// Reads the header at the front of `bytes`; `None` if it is incomplete.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_LENGTH>() else {
            return Ok(None);
        };
        let mut fields = Fields(header);
        let length = fields.u32();
        let tag = fields.u32();
        let kind = fields.u16();
        if fields.u16() != 0 {
            return Err(WireError::Reserved { kind });
        }
        Ok(Some(Self {
            // A u32 fits into usize on all targets of kvmprof; if not, the length exceeds every limit anyway.
            length: usize::try_from(length).unwrap_or(usize::MAX),
            tag,
            kind,
            subject: fields.u32(),
        }))
    }

    /// Refuses a body length outside `allowed`.
    pub fn check_length(&self, allowed: &RangeInclusive<usize>) -> Result<(), WireError> {
        if allowed.contains(&self.length) {
            return Ok(());
        }
        Err(WireError::BodyLength {
            kind: self.kind,
            length: self.length,
            minimum: *allowed.start(),
            maximum: *allowed.end(),
        })
    }

    /// The body after the header in `bytes`, and the whole frame's length; `None` if it is incomplete. The length must
    /// have been checked.
    pub fn body<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let end = HEADER_LENGTH.checked_add(self.length)?;
        Some((bytes.get(HEADER_LENGTH..end)?, end))
    }
}

/// Reads little-endian fields from the front of a slice; a missing one reads as zero, because lengths are checked
/// before.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        match self.0.split_first_chunk() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => {
                self.0 = &[];
                [0; LENGTH]
            }
        }
    }

    pub fn bytes<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        self.take()
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.take())
    }

    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Writes one frame into a buffer.
pub(super) struct FrameWriter<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> FrameWriter<'a> {
    /// Starts a frame of kind `kind` with a body of `body` bytes. `allowed` is the kind's range of lengths.
    pub fn new(
        buffer: &'a mut [u8],
        header: Header,
        allowed: &RangeInclusive<usize>,
    ) -> Result<Self, WireError> {
        header.check_length(allowed)?;
        let needed = HEADER_LENGTH + header.length;
        if buffer.len() < needed {
            return Err(WireError::BufferTooSmall { needed });
        }
        let mut writer = Self { buffer, length: 0 };
        // The length that was just checked is far below 4 GiB.
        writer.put(
            &u32::try_from(header.length)
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        writer.put(&header.tag.to_le_bytes());
        writer.put(&header.kind.to_le_bytes());
        writer.put(&[0; 2]);
        writer.put(&header.subject.to_le_bytes());
        Ok(writer)
    }

    /// Appends `bytes`.
    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        // `new` has checked that the announced body fits.
        if let Some(place) = self.buffer.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
            self.length = end;
        }
    }

    /// The frame's length.
    pub fn finish(self) -> usize {
        self.length
    }
}
