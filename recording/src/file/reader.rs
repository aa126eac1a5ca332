//! Reads blocks of a recording that arrives in pieces.

use super::block::{Block, HEADER, Kind, MAGIC, VERSION};
use super::error::ReadError;

/// Capacity of the buffer, in bytes, that is kept when all has been read.
const KEPT: usize = 16 << 10;

/// Splits a recording into blocks. It keeps the bytes of one block, at most 64 MiB, and those that were pushed after it.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
    /// How many bytes of the buffer have been read.
    done: usize,
    /// Bytes of the recording that have been read.
    offset: u64,
    /// The unpacked size of these, in bytes.
    unpacked: u64,
    passed_over: &'static [Kind],
}

impl Reader {
    /// A reader that skips the contents of blocks of these `kinds`: they are empty.
    pub fn without(kinds: &'static [Kind]) -> Self {
        Self {
            passed_over: kinds,
            ..Self::default()
        }
    }

    /// From the next block on, skips the contents of blocks of these `kinds`, and of no others.
    pub(super) fn pass_over(&mut self, kinds: &'static [Kind]) {
        self.passed_over = kinds;
    }

    /// Takes the next bytes of the recording.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.done);
        self.done = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next block; `None` until more bytes have been pushed.
    ///
    /// # Errors
    /// It isn't a recording of a known format, the rest of it can't be read, or its unpacked size is above the maximum.
    pub fn next_block(&mut self) -> Result<Option<Block>, ReadError> {
        if self.offset == 0 {
            let Some(header) = self.buffer.first_chunk() else {
                return Ok(None);
            };
            check(header)?;
            self.advance(HEADER);
        }
        let bytes = self.buffer.get(self.done..).unwrap_or_default();
        let block = Block::decode_next(bytes, self.offset, self.passed_over, self.unpacked)?;
        if let Some(block) = &block {
            self.advance(block.length);
            self.unpacked += block.contents.len() as u64;
        }
        Ok(block)
    }

    fn advance(&mut self, length: usize) {
        self.done += length;
        self.offset += length as u64;
        if self.done == self.buffer.len() {
            // After a large block of symbols there may be only small ones for weeks.
            self.buffer.clear();
            self.buffer.shrink_to(KEPT);
            self.done = 0;
        }
    }

    /// Bytes of the recording that have been read: its header, and whole blocks.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The unpacked size of these in bytes, without blocks that were skipped.
    pub fn unpacked(&self) -> u64 {
        self.unpacked
    }
}

fn check(header: &[u8; HEADER]) -> Result<(), ReadError> {
    if !header.starts_with(&MAGIC) {
        return Err(ReadError::NotARecording);
    }
    match u32::from_le_bytes([header[8], header[9], header[10], header[11]]) {
        VERSION => Ok(()),
        version => Err(ReadError::UnknownVersion(version)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Account, Piece, RecordingInfo, header};

    fn recording() -> Vec<u8> {
        let blocks = [
            Some(header().to_vec()),
            RecordingInfo::default().to_block(),
            Block::encode(Kind::Symbols, b"1000 T f\n"),
            Block::encode(Kind::Samples, &[1, 2, 3]),
            Account::default().to_block(),
        ];
        blocks.into_iter().flatten().flatten().collect()
    }

    fn read(
        reader: &mut Reader,
        bytes: &[u8],
        length: usize,
    ) -> (Vec<Block>, Result<(), ReadError>) {
        let mut all = Vec::new();
        for bytes in bytes.chunks(length) {
            reader.push(bytes);
            while let Some(block) = reader.next_block().transpose() {
                match block {
                    Ok(block) => all.push(block),
                    Err(error) => return (all, Err(error)),
                }
            }
        }
        (all, Ok(()))
    }

    #[test]
    fn blocks_are_read_for_any_fragmentation() {
        let bytes = recording();
        for length in 1..=bytes.len() {
            let mut reader = Reader::default();
            let (blocks, result) = read(&mut reader, &bytes, length);
            assert_eq!(result, Ok(()));
            assert_eq!(reader.offset(), bytes.len() as u64);
            let mut offset = HEADER as u64;
            for block in &blocks {
                assert_eq!(block.offset, offset);
                offset += block.length as u64;
            }
            let mut pieces = blocks.into_iter().map(|block| block.piece().unwrap());
            let mut next = || pieces.next().flatten();
            assert_eq!(next(), Some(Piece::Info(RecordingInfo::default())));
            assert_eq!(next(), Some(Piece::Symbols("1000 T f\n".to_owned())));
            let Some(Piece::Samples(samples)) = next() else {
                panic!("no samples");
            };
            let error = samples.read(|_, _| {}).unwrap_err();
            assert!(matches!(error, ReadError::Damaged { .. }));
            assert_eq!(next(), Some(Piece::End(Account::default())));
            assert_eq!(next(), None);
        }
    }

    #[test]
    fn contents_can_be_skipped() {
        let mut reader = Reader::without(&[Kind::Samples]);
        let (blocks, result) = read(&mut reader, &recording(), 7);
        assert_eq!(result, Ok(()));
        let lengths = blocks.iter().map(|block| block.contents.len());
        assert_eq!(lengths.skip(1).take(2).collect::<Vec<_>>(), [9, 0]);
    }

    #[test]
    fn unknown_kinds_of_blocks_are_skipped() {
        let mut bytes = recording();
        bytes.truncate(HEADER);
        bytes.extend(Block::of_later_kind(b"what?"));
        bytes.extend(Block::encode(Kind::Symbols, b"1000 T f\n").unwrap());
        let (blocks, result) = read(&mut Reader::default(), &bytes, 5);
        assert_eq!(result, Ok(()));
        let pieces: Vec<_> = blocks.into_iter().map(Block::piece).collect();
        let symbols = Piece::Symbols("1000 T f\n".to_owned());
        assert_eq!(pieces, [Ok(None), Ok(Some(symbols))]);
    }

    #[test]
    fn a_block_that_is_too_long_is_refused_by_its_header() {
        let mut bytes = recording();
        bytes[HEADER + 4..HEADER + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        let (_, result) = read(&mut Reader::default(), &bytes[..HEADER + 12], 1);
        let error = ReadError::CutOff {
            offset: HEADER as u64,
            what: "a block is too long",
        };
        assert_eq!(result, Err(error));
    }

    #[test]
    fn other_files_are_no_recordings() {
        let bytes = recording();
        let result = |bytes: &[u8], length| read(&mut Reader::default(), bytes, length).1;
        assert_eq!(result(&[b'x'; 20], 3), Err(ReadError::NotARecording));
        let mut later = bytes;
        later[8] = 9;
        assert_eq!(result(&later, 7), Err(ReadError::UnknownVersion(9)));
    }

    #[test]
    fn reading_ends_at_a_damaged_block() {
        let bytes = recording();
        let (whole, _) = read(&mut Reader::default(), &bytes, bytes.len());
        for index in HEADER..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            let mut reader = Reader::default();
            let (blocks, result) = read(&mut reader, &damaged, 5);
            let before = whole
                .iter()
                .take_while(|block| block.offset + block.length as u64 <= index as u64);
            assert!(blocks.iter().eq(before), "byte {index}");
            match result {
                Err(ReadError::CutOff { offset, .. }) => assert_eq!(offset, reader.offset()),
                // The reader waits for the increased length.
                Ok(()) => assert!(blocks.len() < 4),
                Err(error) => panic!("byte {index}: {error}"),
            }
        }
    }

    /// A client may read small blocks for weeks after the symbols.
    #[test]
    fn the_memory_of_a_large_block_is_freed() {
        let numbers = (0..100_000_u32).map(|number| number.wrapping_mul(2_654_435_761));
        let symbols: String = numbers.map(|number| format!("{number:x} t f\n")).collect();
        let mut reader = Reader::default();
        reader.push(&header());
        reader.push(&Block::encode(Kind::Symbols, symbols.as_bytes()).unwrap());
        assert!(reader.buffer.capacity() > 10 * KEPT);
        assert!(reader.next_block().unwrap().is_some());
        assert!(reader.buffer.capacity() <= KEPT);
        reader.push(&Block::encode(Kind::Symbols, b"1000 T f\n").unwrap());
        assert!(reader.next_block().unwrap().is_some());
    }
}
