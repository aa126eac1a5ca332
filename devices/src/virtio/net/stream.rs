//! Frames in a stream, in the format of QEMU's `-netdev stream` and passt(1): before each frame is its length, 4 bytes,
//! big-endian.

use super::header::{FRAME_MAX, FRAME_MIN};

/// Size of a length in bytes.
const LENGTH_SIZE: usize = 4;
/// Size of the buffer in bytes: for an incomplete frame, and for many short frames in one read.
const BUFFER_SIZE: usize = 2 * (LENGTH_SIZE + FRAME_MAX);

/// Why no more frames can be read from a stream: the start of the next frame is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The length of a frame is invalid.
    #[error("a frame of {0} bytes, where {FRAME_MIN} to {FRAME_MAX} are possible")]
    Length(u32),
    /// The stream has ended inside a frame.
    #[error("the end after {0} bytes of a frame")]
    CutShort(usize),
}

/// Finds the frames in a stream. It takes bytes in any pieces, and keeps at most as many as two frames have.
pub struct FrameReader {
    buffer: Box<[u8]>,
    /// The start of the bytes that are left.
    start: usize,
    /// The end of the bytes that are left, exclusive.
    end: usize,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            buffer: vec![0; BUFFER_SIZE].into(),
            start: 0,
            end: 0,
        }
    }
}

impl FrameReader {
    /// The room for the next bytes of the stream: never empty after [`FrameReader::next_frame`] has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// Takes the first `bytes` bytes of the room, which the caller has filled.
    pub fn filled(&mut self, bytes: usize) {
        self.end = self.end.saturating_add(bytes).min(self.buffer.len());
    }

    /// The next frame. `None` if it isn't complete yet.
    ///
    /// # Errors
    /// The length is invalid. No more frames can be read.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, StreamError> {
        let Some(length) = self.length()? else {
            return Ok(None);
        };
        let start = self.start + LENGTH_SIZE;
        if start + length > self.end {
            return Ok(None);
        }
        self.start = start + length;
        Ok(self.buffer.get(start..start + length))
    }

    /// True if [`FrameReader::next_frame`] would return a frame or an error.
    #[must_use]
    pub fn has_frame(&self) -> bool {
        match self.length() {
            Ok(Some(length)) => self.start + LENGTH_SIZE + length <= self.end,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Checks that the stream, which has ended, ended after a whole frame.
    ///
    /// # Errors
    /// The stream has ended inside a frame.
    pub fn finish(&self) -> Result<(), StreamError> {
        match self.end - self.start {
            0 => Ok(()),
            bytes => Err(StreamError::CutShort(bytes)),
        }
    }

    /// Drops all bytes: another stream begins.
    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    fn length(&self) -> Result<Option<usize>, StreamError> {
        let left = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some(length) = left.first_chunk::<LENGTH_SIZE>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length);
        match usize::try_from(length) {
            Ok(bytes) if (FRAME_MIN..=FRAME_MAX).contains(&bytes) => Ok(Some(bytes)),
            _ => Err(StreamError::Length(length)),
        }
    }
}

/// A frame that is written to a stream in pieces.
#[derive(Debug, Default)]
pub struct FrameWriter {
    bytes: Vec<u8>,
    done: usize,
}

impl FrameWriter {
    /// Takes a frame. False if the last frame isn't written yet, or if this frame is too long.
    pub fn take(&mut self, frame: &[u8]) -> bool {
        let Ok(length) = u32::try_from(frame.len()) else {
            return false;
        };
        if frame.len() > FRAME_MAX || !self.rest().is_empty() {
            return false;
        }
        self.clear();
        self.bytes.extend(length.to_be_bytes());
        self.bytes.extend(frame);
        true
    }

    /// The bytes that have to be written.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.done..).unwrap_or_default()
    }

    /// Removes the first `bytes` bytes of the rest, which were written.
    pub fn written(&mut self, bytes: usize) {
        self.done = self.done.saturating_add(bytes).min(self.bytes.len());
    }

    /// Drops the frame: another stream begins.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.done = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives the reader `bytes` in pieces of at most `step`, and returns the frames.
    fn read(
        reader: &mut FrameReader,
        mut bytes: &[u8],
        step: usize,
    ) -> Result<Vec<Vec<u8>>, StreamError> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let room = reader.room();
            let count = room.len().min(step).min(bytes.len());
            assert_ne!(count, 0, "there is always room");
            let (now, later) = bytes.split_at(count);
            room[..count].copy_from_slice(now);
            bytes = later;
            reader.filled(count);
            loop {
                let announced = reader.has_frame();
                let Some(frame) = reader.next_frame()? else {
                    assert!(!announced);
                    break;
                };
                frames.push(frame.to_vec());
                assert!(announced);
            }
        }
        Ok(frames)
    }

    /// The stream of these frames.
    fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = FrameWriter::default();
        let mut bytes = Vec::new();
        for frame in frames {
            assert!(writer.take(frame));
            bytes.extend(writer.rest());
            writer.written(writer.rest().len());
        }
        bytes
    }

    proptest! {
        #[test]
        fn frames_are_decoded_for_any_fragmentation(
            lengths in prop::collection::vec(FRAME_MIN..3000, 0..20),
            step in 1_usize..5000,
        ) {
            let frames: Vec<Vec<u8>> = lengths.iter().zip(0..).map(|(length, byte)| vec![byte; *length]).collect();
            let mut reader = FrameReader::default();
            prop_assert_eq!(read(&mut reader, &stream(&frames), step), Ok(frames));
            prop_assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn the_longest_frames_fit() {
        let frames = vec![vec![1; FRAME_MAX], vec![2; FRAME_MAX], vec![3; FRAME_MIN]];
        let mut reader = FrameReader::default();
        assert_eq!(read(&mut reader, &stream(&frames), usize::MAX), Ok(frames));
    }

    #[test]
    fn impossible_lengths_end_the_stream() {
        for length in [0, 13, 65554, 1 << 31, u32::MAX] {
            let mut bytes = length.to_be_bytes().to_vec();
            bytes.extend([0; 100]);
            let error = read(&mut FrameReader::default(), &bytes, 3);
            assert_eq!(error, Err(StreamError::Length(length)));
        }
    }

    #[test]
    fn an_end_inside_a_frame_is_an_error() {
        let bytes = stream(&[vec![1; 20], vec![2; 20]]);
        let mut reader = FrameReader::default();
        let whole = read(&mut reader, &bytes[..bytes.len() - 1], 7).unwrap();
        assert_eq!(whole, [vec![1; 20]]);
        assert_eq!(reader.finish(), Err(StreamError::CutShort(23)));
        reader.clear();
        assert_eq!(reader.finish(), Ok(()));
        assert_eq!(read(&mut reader, &bytes, 7).unwrap().len(), 2);
    }

    #[test]
    fn a_frame_is_written_in_pieces() {
        let mut writer = FrameWriter::default();
        assert!(writer.take(&[9; 14]));
        writer.written(5);
        assert_eq!(writer.rest(), [9; 13]);
        assert!(!writer.take(&[8; 14]));
        writer.written(13);
        assert!(writer.rest().is_empty());
        assert!(!writer.take(&vec![0; FRAME_MAX + 1]));
        assert!(writer.take(&[8; 14]));
        assert_eq!(&writer.rest()[..5], [0, 0, 0, 14, 8]);
    }
}
