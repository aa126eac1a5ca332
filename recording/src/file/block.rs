//! The frame of each block, and the file's header.

use std::cell::RefCell;
use std::io;

use zstd::bulk::Decompressor;

use super::{Piece, ReadError};

/// The first bytes of every recording.
pub const MAGIC: [u8; 8] = *b"kvmprof\0";
/// The format that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Bytes of the file's header.
pub const HEADER: usize = 16;
/// Bytes of a block's header.
const BLOCK_HEADER: usize = 12;
/// Maximum size of a block in bytes, packed and unpacked.
pub const MAX_BLOCK: usize = 64 << 20;
/// Longest block of samples, of their details, of looks at tasks, or of exits, unpacked, in bytes. Recorders deliver a block of 64 KiB; what samples refer to is in the same block,
/// and takes several times as much in memory.
const MAX_SAMPLES: usize = 4 << 20;
/// Maximum ratio of a recording's unpacked size to its size, and the unpacked size in bytes that is always allowed. Compression reduces symbols
/// to a quarter, samples to a third, lists of mappings that repeat to a twentieth, and blocks that are made to fill the memory to a
/// ten-thousandth.
const MAX_RATIO: u64 = 128;
const ALWAYS_ALLOWED: u64 = 8 << 20;
/// The compression level.
const LEVEL: i32 = 1;

/// The kind of a block's contents. The numbers are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The recording's properties: JSON.
    Info = 1,
    /// The symbols of the guest's kernel: text in the form of `/proc/kallsyms`, packed.
    Symbols = 2,
    /// Samples, packed.
    Samples = 3,
    /// The account of all ticks, when the recording came to its end: JSON.
    End = 4,
    /// The executable mappings of one address space: JSON, packed.
    Mappings = 5,
    /// A file that code was executed from: a line of JSON, then its functions, packed.
    Binary = 6,
    /// The guest's kernel: JSON.
    Kernel = 7,
    /// A restart of the guest: JSON.
    Reset = 8,
    /// Looks at the guest's tasks, packed.
    Tasks = 9,
    /// Details of some of the samples in the next block of samples, packed.
    Details = 10,
    /// The times of the ticks in the next block of samples.
    Times = 11,
    /// Labels of a process: JSON.
    Labels = 12,
    /// Functions of languages: JSON, packed.
    Functions = 13,
    /// Names of generated code: a line of JSON, then lines of a perf map, packed.
    GeneratedCode = 14,
    /// The exits of the guest's vCPUs in an interval, packed.
    Exits = 15,
    /// A client has paused the guest, or let it continue: JSON.
    Pause = 16,
}

impl Kind {
    const ALL: [Self; 16] = [
        Self::Info,
        Self::Symbols,
        Self::Samples,
        Self::End,
        Self::Mappings,
        Self::Binary,
        Self::Kernel,
        Self::Reset,
        Self::Tasks,
        Self::Details,
        Self::Times,
        Self::Labels,
        Self::Functions,
        Self::GeneratedCode,
        Self::Exits,
        Self::Pause,
    ];

    fn number(self) -> u32 {
        self as u32
    }

    fn is_packed(self) -> bool {
        matches!(
            self,
            Self::Symbols
                | Self::Samples
                | Self::Mappings
                | Self::Binary
                | Self::Tasks
                | Self::Details
                | Self::Functions
                | Self::GeneratedCode
                | Self::Exits
        )
    }
}

/// The file's header.
pub fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// A block of a recording.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The kind of its contents; `None` for later additions to the format, which are skipped.
    pub kind: Option<Kind>,
    /// The contents, unpacked.
    pub contents: Vec<u8>,
    /// Its size in the file, in bytes.
    pub length: usize,
    /// The offset of its start in the recording, in bytes.
    pub offset: u64,
}

impl Block {
    /// The bytes of a block in the file. `None` when it would be too long.
    pub fn encode(kind: Kind, contents: &[u8]) -> Option<Vec<u8>> {
        let packed;
        let stored = if kind.is_packed() {
            packed = zstd::bulk::compress(contents, LEVEL).ok()?;
            packed.as_slice()
        } else {
            contents
        };
        if contents.len() > MAX_BLOCK || stored.len() > MAX_BLOCK {
            return None;
        }
        let mut bytes = Vec::with_capacity(BLOCK_HEADER + stored.len());
        bytes.extend(kind.number().to_le_bytes());
        bytes.extend(u32::try_from(stored.len()).ok()?.to_le_bytes());
        bytes.extend(checksum(&bytes, stored).to_le_bytes());
        bytes.extend(stored);
        Some(bytes)
    }

    /// The block at the start of `bytes`. `None` when it isn't whole or its checksum is wrong: the file was cut off
    /// there.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode_next(bytes, 0, &[], 0).ok()?
    }

    /// The same for a block at `offset` of whose bytes more may come: `None` while there are too few. Of a block of
    /// a kind that is `passed_over` the contents stay empty. What came before has unpacked to `unpacked` bytes.
    ///
    /// # Errors
    /// Whatever follows, these bytes make no block; or it would unpack to more than recordings do.
    pub(super) fn decode_next(
        bytes: &[u8],
        offset: u64,
        passed_over: &[Kind],
        unpacked: u64,
    ) -> Result<Option<Self>, ReadError> {
        let cut_off = |what| ReadError::CutOff { offset, what };
        let Some((header, rest)) = bytes.split_first_chunk::<BLOCK_HEADER>() else {
            return Ok(None);
        };
        let word = |index: usize| {
            let bytes = header.iter().skip(index * 4).take(4);
            bytes
                .rev()
                .fold(0, |word, byte| word << 8 | u32::from(*byte))
        };
        let length = usize::try_from(word(1)).unwrap_or(usize::MAX);
        if length > MAX_BLOCK {
            return Err(cut_off("a block is too long"));
        }
        let Some(stored) = rest.get(..length) else {
            return Ok(None);
        };
        if word(2) != checksum(&header[..8], stored) {
            return Err(cut_off("a checksum is wrong"));
        }
        let kind = Kind::ALL.into_iter().find(|kind| kind.number() == word(0));
        let contents = match kind {
            Some(kind) if passed_over.contains(&kind) => Vec::new(),
            Some(kind) if kind.is_packed() => {
                let broken = || cut_off("a block can't be unpacked");
                let size = unpacked_size(stored).ok_or_else(broken)?;
                let end = offset + (BLOCK_HEADER + length) as u64;
                let is_limited = matches!(
                    kind,
                    Kind::Samples | Kind::Tasks | Kind::Details | Kind::Exits
                );
                let is_long = is_limited && size > MAX_SAMPLES;
                if is_long || unpacked.saturating_add(size as u64) > most_unpacked(end) {
                    let what = "it unpacks to far more than recordings do";
                    return Err(ReadError::Damaged { offset, what });
                }
                unpack(stored, size).map_err(|_| broken())?
            }
            _ => stored.to_vec(),
        };
        Ok(Some(Self {
            kind,
            contents,
            length: BLOCK_HEADER + length,
            offset,
        }))
    }

    /// Its decoded contents; `None` for later additions to the format.
    ///
    /// # Errors
    /// It is invalid.
    pub fn piece(self) -> Result<Option<Piece>, ReadError> {
        let offset = self.offset;
        let piece = self
            .kind
            .map(|kind| Piece::decode(kind, self.contents, offset));
        piece
            .transpose()
            .map_err(|what| ReadError::Damaged { offset, what })
    }
}

thread_local! {
    /// A decompressor for all blocks of a thread: making one takes longer than unpacking a block with a second's samples.
    static UNPACKER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Unpacks a block to `size` bytes.
fn unpack(packed: &[u8], size: usize) -> io::Result<Vec<u8>> {
    UNPACKER.with_borrow_mut(|unpacker| {
        let unpacker = match unpacker {
            Some(unpacker) => unpacker,
            none => none.insert(Decompressor::new()?),
        };
        unpacker.decompress(packed, size)
    })
}

/// The unpacked size that `packed` claims, in bytes; `None` if it has none, or one above the maximum of a block.
fn unpacked_size(packed: &[u8]) -> Option<usize> {
    let size = zstd::zstd_safe::get_frame_content_size(packed).ok()??;
    usize::try_from(size).ok().filter(|size| *size <= MAX_BLOCK)
}

/// The maximum unpacked size of the first `length` bytes of a recording, in bytes.
fn most_unpacked(length: u64) -> u64 {
    length
        .saturating_mul(MAX_RATIO)
        .saturating_add(ALWAYS_ALLOWED)
}

fn checksum(header: &[u8], contents: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(contents);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_round_trip() {
        for kind in Kind::ALL {
            let bytes = Block::encode(kind, b"some contents").unwrap();
            let block = Block::decode(&bytes).unwrap();
            assert_eq!(block.kind, Some(kind));
            assert_eq!(block.contents, b"some contents");
            assert_eq!(block.length, bytes.len());
        }
    }

    impl Block {
        /// A block of an unknown kind.
        pub fn of_later_kind(contents: &[u8]) -> Vec<u8> {
            let mut bytes = Self::encode(Kind::End, contents).unwrap();
            bytes[0] = 77;
            let sum = checksum(&bytes[..8], contents);
            bytes[8..12].copy_from_slice(&sum.to_le_bytes());
            bytes
        }
    }
}
