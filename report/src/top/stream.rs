//! Blocks out of a recording that arrives in pieces.

use crate::file::{
    Account, Binary, Block, Facts, HEADER, Kind, MAGIC, MAX_BLOCK, ProcessMappings, VERSION,
};

/// What keeps a stream from being read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It doesn't begin like a recording.
    #[error("What the guest's recorder sends is no recording")]
    NotARecording,
    /// It is of another version of the format.
    #[error(
        "The recorder's format is version {0}, but this program reads version {VERSION}: use the program that runs the guest"
    )]
    UnknownVersion(u32),
    /// A block makes no sense.
    #[error("The recorder's stream is damaged: {0}")]
    Damaged(&'static str),
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What the recording is about.
    Facts(Facts),
    /// The symbols of the guest's kernel, in the form of `/proc/kallsyms`.
    Symbols(String),
    /// The executable mappings of an address space.
    Mappings(ProcessMappings),
    /// A file that code was executed from.
    Binary(Binary),
    /// Samples, for [`decode_samples`](crate::file::decode_samples).
    Samples(Vec<u8>),
    /// The account of all ticks: nothing follows.
    End(Account),
}

/// Puts pieces of any length together. It keeps the bytes of one block, at most 64 MiB, and what was pushed behind it.
#[derive(Debug, Default)]
pub struct StreamReader {
    buffer: Vec<u8>,
    has_begun: bool,
}

impl StreamReader {
    /// Takes the next bytes, and hands all blocks that are whole now to `each`.
    ///
    /// # Errors
    /// It is no recording of a known format, or damaged; nothing after that can be read.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(Piece)) -> Result<(), StreamError> {
        self.buffer.extend_from_slice(bytes);
        let mut done = 0;
        if !self.has_begun {
            let Some(header) = self.buffer.get(..HEADER) else {
                return Ok(());
            };
            check(header)?;
            self.has_begun = true;
            done = HEADER;
        }
        while let Some(block) = next(self.buffer.get(done..).unwrap_or_default())? {
            done += block.length;
            if let Some(piece) = piece(block)? {
                each(piece);
            }
        }
        self.buffer.drain(..done);
        Ok(())
    }
}

fn check(header: &[u8]) -> Result<(), StreamError> {
    if !header.starts_with(&MAGIC) {
        return Err(StreamError::NotARecording);
    }
    match u32::from_le_bytes([header[8], header[9], header[10], header[11]]) {
        VERSION => Ok(()),
        version => Err(StreamError::UnknownVersion(version)),
    }
}

/// The block at the start of `bytes`, once it is whole.
fn next(bytes: &[u8]) -> Result<Option<Block>, StreamError> {
    let Some(length) = Block::length_at(bytes) else {
        return Ok(None);
    };
    // A block's own header is shorter than the file's.
    if length > (MAX_BLOCK + HEADER) as u64 {
        return Err(StreamError::Damaged("a block is too long"));
    }
    if (bytes.len() as u64) < length {
        return Ok(None);
    }
    let block = Block::decode(bytes).ok_or(StreamError::Damaged("a checksum is wrong"))?;
    Ok(Some(block))
}

fn piece(block: Block) -> Result<Option<Piece>, StreamError> {
    let contents = block.contents;
    let json = |_| StreamError::Damaged("a block is no JSON of its form");
    Ok(Some(match block.kind {
        Some(Kind::Facts) => Piece::Facts(serde_json::from_slice(&contents).map_err(json)?),
        Some(Kind::Symbols) => Piece::Symbols(
            String::from_utf8(contents)
                .map_err(|_| StreamError::Damaged("its symbols are no text"))?,
        ),
        Some(Kind::Samples) => Piece::Samples(contents),
        Some(Kind::End) => Piece::End(serde_json::from_slice(&contents).map_err(json)?),
        Some(Kind::Mappings) => Piece::Mappings(serde_json::from_slice(&contents).map_err(json)?),
        Some(Kind::Binary) => Piece::Binary(
            Binary::decode(contents).ok_or(StreamError::Damaged("a file is not of its form"))?,
        ),
        Some(Kind::Kernel) | None => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::header;

    fn stream() -> Vec<u8> {
        let facts = serde_json::to_vec(&Facts::default()).unwrap();
        let account = serde_json::to_vec(&Account::default()).unwrap();
        let mut bytes = header().to_vec();
        for (kind, contents) in [
            (Kind::Facts, facts.as_slice()),
            (Kind::Symbols, b"1000 T f\n"),
            (Kind::Samples, &[1, 2, 3]),
            (Kind::End, &account),
        ] {
            bytes.extend(Block::encode(kind, contents).unwrap());
        }
        bytes
    }

    fn pieces(bytes: &[u8], length: usize) -> Result<Vec<Piece>, StreamError> {
        let (mut reader, mut all) = (StreamReader::default(), Vec::new());
        for bytes in bytes.chunks(length) {
            reader.push(bytes, |piece| all.push(piece))?;
        }
        Ok(all)
    }

    #[test]
    fn blocks_are_the_same_in_whatever_pieces_they_come() {
        let bytes = stream();
        let expected = [
            Piece::Facts(Facts::default()),
            Piece::Symbols("1000 T f\n".to_owned()),
            Piece::Samples(vec![1, 2, 3]),
            Piece::End(Account::default()),
        ];
        for length in 1..=bytes.len() {
            assert_eq!(pieces(&bytes, length).unwrap(), expected, "{length}");
        }
    }

    #[test]
    fn a_block_that_is_too_long_is_not_waited_for() {
        let mut bytes = stream();
        bytes[HEADER + 4..HEADER + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = pieces(&bytes[..HEADER + 12], 1).unwrap_err();
        assert_eq!(error, StreamError::Damaged("a block is too long"));
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        let bytes = stream();
        assert_eq!(pieces(&[b'x'; 20], 3), Err(StreamError::NotARecording));
        let mut later = bytes.clone();
        later[8] = 9;
        assert_eq!(pieces(&later, 7), Err(StreamError::UnknownVersion(9)));
        for index in HEADER..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            match pieces(&damaged, 5) {
                Err(StreamError::Damaged(_)) => {}
                // A length that has grown is waited for.
                Ok(pieces) => assert!(pieces.len() < 4, "byte {index}"),
                Err(error) => panic!("byte {index}: {error}"),
            }
        }
    }
}
