//! Requests of the block device in guest memory (section 5.2.6).

use super::{Answer, SECTOR, SERIAL_MAX};
use crate::virtio::{GuestMemory, QueueError, Virtqueue};

/// Size of a request's header in bytes.
const HEADER: usize = 16;
/// Size of the status at a request's end in bytes.
const STATUS: usize = 1;
/// Size of a segment of a request to discard or to write zeroes, in bytes.
const SEGMENT: usize = 16;

/// Flag of a segment: its space may be freed.
const FLAG_UNMAP: u32 = 1;

/// The limits for the segments of a request.
#[derive(Clone, Copy)]
pub(super) struct SegmentLimits {
    /// Maximum number of segments of the request.
    pub segments: u32,
    /// Maximum number of sectors of a segment.
    pub sectors: u32,
    flags: u32,
}

/// The limits of a request to discard.
pub(super) const DISCARD: SegmentLimits = SegmentLimits {
    segments: 16,
    sectors: 1 << 22,
    flags: 0,
};

/// The limits of a request to write zeroes: few, because it takes time if the host has to write them.
pub(super) const ZEROES: SegmentLimits = SegmentLimits {
    segments: 4,
    sectors: 1 << 17,
    flags: FLAG_UNMAP,
};

/// The types of requests.
mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// The statuses of requests.
pub(super) mod status {
    pub const OK: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const UNSUPPORTED: u8 = 2;
}

/// What a request asks for. Offsets and lengths are in bytes; they are whole sectors within the disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read bytes, at most as many as a descriptor chain can have.
    Read {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        length: usize,
    },
    /// Write these bytes.
    Write {
        /// The first byte.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Put all written data onto the disk.
    Flush,
    /// Discard these parts: they may have any content afterwards.
    Discard(Vec<Extent>),
    /// Fill these parts with zeroes.
    WriteZeroes(Vec<Extent>),
}

/// A part of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// True if its space may be freed.
    pub unmap: bool,
}

impl Operation {
    /// True if the operation changes the disk.
    pub(super) fn changes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }
}

/// The disk's properties by which requests are checked.
pub(super) struct Limits {
    pub sectors: u64,
    pub readonly: bool,
    pub discard: bool,
    pub write_zeroes: bool,
    pub serial: [u8; SERIAL_MAX],
}

/// Why a request isn't performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request's type is unknown or wasn't negotiated.
    Unsupported,
    /// The request is invalid.
    Invalid,
}

/// The result of reading a chain.
#[derive(Debug)]
pub(super) enum ParsedChain {
    Operation(Operation),
    /// The request has been answered.
    Answered,
    Refused(Refusal),
}

/// Reads the request of the chain in progress.
///
/// # Errors
/// The chain has no room for a header or a status.
pub(super) fn parse(
    queue: &mut Virtqueue,
    memory: &GuestMemory,
    limits: &Limits,
) -> Result<ParsedChain, QueueError> {
    let mut header = [0; HEADER];
    if queue.read(memory, &mut header)? < HEADER || queue.writable() < STATUS {
        return Err(QueueError::TooShort);
    }
    let (kind, sector) = decode_header(header);
    let operation = match kind {
        kind::IN => read(queue, sector, limits),
        kind::OUT => write(queue, memory, sector, limits)?,
        kind::FLUSH => Ok(Operation::Flush),
        kind::GET_ID => return get_id(queue, memory, limits),
        kind::DISCARD if limits.discard => {
            segments(queue, memory, limits, DISCARD)?.map(Operation::Discard)
        }
        kind::WRITE_ZEROES if limits.write_zeroes => {
            segments(queue, memory, limits, ZEROES)?.map(Operation::WriteZeroes)
        }
        _ => Err(Refusal::Unsupported),
    };
    Ok(operation.map_or_else(ParsedChain::Refused, ParsedChain::Operation))
}

fn decode_header(header: [u8; HEADER]) -> (u32, u64) {
    let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = header;
    (
        u32::from_le_bytes([k0, k1, k2, k3]),
        u64::from_le_bytes(sector),
    )
}

/// The offset of `sector` in bytes, if `bytes` bytes from there are whole sectors of the disk.
fn checked(sector: u64, bytes: u64, limits: &Limits) -> Result<u64, Refusal> {
    let sectors = bytes / SECTOR;
    let end = sector.checked_add(sectors).ok_or(Refusal::Invalid)?;
    let whole = bytes.is_multiple_of(SECTOR) && sectors > 0;
    if !whole || end > limits.sectors {
        return Err(Refusal::Invalid);
    }
    sector.checked_mul(SECTOR).ok_or(Refusal::Invalid)
}

fn read(queue: &Virtqueue, sector: u64, limits: &Limits) -> Result<Operation, Refusal> {
    let length = queue.writable().saturating_sub(STATUS);
    let offset = checked(sector, length as u64, limits)?;
    Ok(Operation::Read { offset, length })
}

fn write(
    queue: &mut Virtqueue,
    memory: &GuestMemory,
    sector: u64,
    limits: &Limits,
) -> Result<Result<Operation, Refusal>, QueueError> {
    let length = queue.readable();
    if limits.readonly {
        return Ok(Err(Refusal::Invalid));
    }
    let offset = match checked(sector, length as u64, limits) {
        Ok(offset) => offset,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut data = vec![0; length];
    queue.read(memory, &mut data)?;
    Ok(Ok(Operation::Write { offset, data }))
}

/// Answers with the serial number, which ends with a zero if it is shorter than the maximum.
fn get_id(
    queue: &mut Virtqueue,
    memory: &GuestMemory,
    limits: &Limits,
) -> Result<ParsedChain, QueueError> {
    if queue.writable() < SERIAL_MAX + STATUS {
        return Ok(ParsedChain::Refused(Refusal::Invalid));
    }
    queue.write(memory, &limits.serial)?;
    answer(queue, memory, status::OK)?;
    Ok(ParsedChain::Answered)
}

fn segments(
    queue: &mut Virtqueue,
    memory: &GuestMemory,
    limits: &Limits,
    most: SegmentLimits,
) -> Result<Result<Vec<Extent>, Refusal>, QueueError> {
    let length = queue.readable();
    let count = length / SEGMENT;
    let too_many = u32::try_from(count).is_ok_and(|count| count > most.segments);
    if limits.readonly || count == 0 || too_many || !length.is_multiple_of(SEGMENT) {
        return Ok(Err(Refusal::Invalid));
    }
    let mut extents = Vec::with_capacity(count);
    for _ in 0..count {
        let mut segment = [0; SEGMENT];
        queue.read(memory, &mut segment)?;
        match extent(segment, limits, most) {
            Ok(extent) => extents.push(extent),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    Ok(Ok(extents))
}

fn extent(segment: [u8; SEGMENT], limits: &Limits, most: SegmentLimits) -> Result<Extent, Refusal> {
    let [sector @ .., c0, c1, c2, c3, f0, f1, f2, f3] = segment;
    let sectors = u32::from_le_bytes([c0, c1, c2, c3]);
    let flags = u32::from_le_bytes([f0, f1, f2, f3]);
    // Section 5.2.6.2: unknown flags, and the flag unmap in a request to discard, are unsupported.
    if flags & !most.flags != 0 {
        return Err(Refusal::Unsupported);
    }
    if sectors > most.sectors {
        return Err(Refusal::Invalid);
    }
    let length = u64::from(sectors) * SECTOR;
    Ok(Extent {
        offset: checked(u64::from_le_bytes(sector), length, limits)?,
        length,
        unmap: flags & FLAG_UNMAP != 0,
    })
}

/// Puts `code` into the last byte of the chain in progress.
pub(super) fn answer(
    queue: &mut Virtqueue,
    memory: &GuestMemory,
    code: u8,
) -> Result<(), QueueError> {
    queue.skip_output(queue.writable().saturating_sub(STATUS));
    queue.write(memory, &[code])?;
    Ok(())
}

/// Answers the request of the chain in progress, and returns it to the driver.
pub(super) fn finish(
    queue: &mut Virtqueue,
    memory: &GuestMemory,
    how: Answer<'_>,
) -> Result<(), QueueError> {
    let code = match how {
        Answer::Done(data) => {
            // The last byte is always the status.
            let room = queue.writable().saturating_sub(STATUS);
            queue.write(memory, data.get(..room).unwrap_or(data))?;
            status::OK
        }
        Answer::Failed => status::ERROR,
    };
    answer(queue, memory, code)?;
    queue.finish(memory)
}
