//! The frame of each block, and the file's header.

/// How every recording begins.
pub const MAGIC: [u8; 8] = *b"kvmprof\0";
/// The format that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Bytes of the file's header.
pub const HEADER: usize = 16;
/// Bytes of a block's header.
const BLOCK_HEADER: usize = 12;
/// Longest block, in bytes, as it lies in the file and unpacked.
pub const MAX_BLOCK: usize = 64 << 20;
/// How much work the packer takes.
const LEVEL: i32 = 1;

/// What a block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What the recording is about: JSON.
    Facts,
    /// The symbols of the guest's kernel: text in the form of `/proc/kallsyms`, packed.
    Symbols,
    /// Samples, packed.
    Samples,
    /// The account of all ticks, when the recording came to its end: JSON.
    End,
    /// The executable mappings of one address space: JSON, packed.
    Mappings,
    /// A file that code was executed from: a line of JSON, then its functions, packed.
    Binary,
    /// The guest's kernel: JSON.
    Kernel,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Facts,
        Self::Symbols,
        Self::Samples,
        Self::End,
        Self::Mappings,
        Self::Binary,
        Self::Kernel,
    ];

    fn number(self) -> u32 {
        match self {
            Self::Facts => 1,
            Self::Symbols => 2,
            Self::Samples => 3,
            Self::End => 4,
            Self::Mappings => 5,
            Self::Binary => 6,
            Self::Kernel => 7,
        }
    }

    fn is_packed(self) -> bool {
        matches!(
            self,
            Self::Symbols | Self::Samples | Self::Mappings | Self::Binary
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

/// A block out of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// What it has; `None` for kinds of later additions, which are passed over.
    pub kind: Option<Kind>,
    /// That, unpacked.
    pub contents: Vec<u8>,
    /// Bytes that it takes in the file.
    pub length: usize,
}

impl Block {
    /// A block as it lies in the file. `None` when it would be too long.
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

    /// Bytes of the block that begins with `bytes`, its header included. `None` while too few of them are there to
    /// tell.
    pub fn length_at(bytes: &[u8]) -> Option<u64> {
        let stored = bytes.get(..BLOCK_HEADER)?.get(4..8)?;
        let stored = u32::from_le_bytes(stored.try_into().ok()?);
        Some(BLOCK_HEADER as u64 + u64::from(stored))
    }

    /// The block at the start of `bytes`. `None` when it isn't whole or its checksum is wrong: there the file was cut
    /// off.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode_but(bytes, None)
    }

    /// The same, but for the contents of a block that is `passed_over`: those are empty.
    pub(super) fn decode_but(bytes: &[u8], passed_over: Option<Kind>) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(BLOCK_HEADER)?;
        let word = |index: usize| {
            let bytes = header.get(index * 4..index * 4 + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let length = usize::try_from(word(1)?).ok()?;
        let stored = rest.get(..length).filter(|_| length <= MAX_BLOCK)?;
        if word(2)? != checksum(&header[..8], stored) {
            return None;
        }
        let number = word(0)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.number() == number);
        let contents = match kind {
            _ if kind.is_some() && kind == passed_over => Vec::new(),
            Some(kind) if kind.is_packed() => {
                zstd::bulk::decompress(stored, unpacked_length(stored)?).ok()?
            }
            _ => stored.to_vec(),
        };
        Some(Self {
            kind,
            contents,
            length: BLOCK_HEADER + length,
        })
    }
}

/// How long a packed block says that it is unpacked, if that is bearable.
fn unpacked_length(packed: &[u8]) -> Option<usize> {
    let length = zstd::zstd_safe::get_frame_content_size(packed).ok()??;
    usize::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_BLOCK)
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
    fn blocks_come_back_as_they_were() {
        for kind in Kind::ALL {
            let bytes = Block::encode(kind, b"some contents").unwrap();
            let block = Block::decode(&bytes).unwrap();
            assert_eq!(block.kind, Some(kind));
            assert_eq!(block.contents, b"some contents");
            assert_eq!(block.length, bytes.len());
            assert_eq!(Block::length_at(&bytes), Some(bytes.len() as u64));
            assert_eq!(Block::length_at(&bytes[..BLOCK_HEADER - 1]), None);
        }
    }

    #[test]
    fn what_is_cut_off_or_changed_is_no_block() {
        let bytes = Block::encode(Kind::Samples, &[7; 300]).unwrap();
        for length in 0..bytes.len() {
            assert_eq!(Block::decode(&bytes[..length]), None);
        }
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 0x10;
            assert_eq!(Block::decode(&changed), None, "byte {index}");
        }
    }

    #[test]
    fn a_later_kind_is_passed_over() {
        let mut bytes = Block::encode(Kind::End, b"{}").unwrap();
        bytes[0] = 77;
        let sum = checksum(&bytes[..8], b"{}");
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        let block = Block::decode(&bytes).unwrap();
        assert_eq!((block.kind, block.length), (None, bytes.len()));
    }
}
