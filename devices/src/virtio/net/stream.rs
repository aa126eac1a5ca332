//! Frames on a stream, as QEMU's `-netdev stream` has them and passt(1) speaks: each has its length in front, 4 bytes,
//! big-endian.

use super::header::{FRAME_MAX, FRAME_MIN};

/// Bytes of a length.
const LENGTH_SIZE: usize = 4;
/// Room for a frame that isn't complete, and many short ones in one read.
const BUFFER_SIZE: usize = 2 * (LENGTH_SIZE + FRAME_MAX);

/// Why a stream can't be read on: where its next frame begins is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A length that no frame has.
    #[error("a frame of {0} bytes, where {FRAME_MIN} to {FRAME_MAX} are possible")]
    Length(u32),
    /// The stream has ended inside a frame.
    #[error("the end after {0} bytes of a frame")]
    CutShort(usize),
}

/// Finds the frames in a stream. It takes bytes as they come, and never more than two frames' worth.
pub struct FrameReader {
    buffer: Box<[u8]>,
    /// The bytes that are left are from here...
    start: usize,
    /// ...to here.
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
    /// Where the next bytes of the stream go: never empty after [`FrameReader::next_frame`] has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes were put into the room.
    pub fn filled(&mut self, bytes: usize) {
        self.end = self.end.saturating_add(bytes).min(self.buffer.len());
    }

    /// The next frame; `None` if its end hasn't come yet.
    ///
    /// # Errors
    /// The length is impossible. The stream can't be read on.
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

    /// Whether [`FrameReader::next_frame`] would return a frame or an error.
    #[must_use]
    pub fn has_frame(&self) -> bool {
        match self.length() {
            Ok(Some(length)) => self.start + LENGTH_SIZE + length <= self.end,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// The stream has ended.
    ///
    /// # Errors
    /// It has ended inside a frame.
    pub fn finish(&self) -> Result<(), StreamError> {
        match self.end - self.start {
            0 => Ok(()),
            bytes => Err(StreamError::CutShort(bytes)),
        }
    }

    /// Forgets everything: another stream begins.
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

/// One frame on its way into a stream that takes it in pieces.
#[derive(Debug, Default)]
pub struct FrameWriter {
    bytes: Vec<u8>,
    done: usize,
}

impl FrameWriter {
    /// Takes a frame; false if the last one isn't written yet, or this one is longer than a frame may be.
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

    /// What is still to be written.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.done..).unwrap_or_default()
    }

    /// So many bytes of the rest were written.
    pub fn written(&mut self, bytes: usize) {
        self.done = self.done.saturating_add(bytes).min(self.bytes.len());
    }

    /// Forgets the frame: another stream begins.
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
        fn frames_come_out_however_the_stream_is_cut(
            lengths in prop::collection::vec(FRAME_MIN..3000, 0..20),
            step in 1_usize..5000,
        ) {
            let frames: Vec<Vec<u8>> = lengths.iter().zip(0..).map(|(length, byte)| vec![byte; *length]).collect();
            let mut reader = FrameReader::default();
            prop_assert_eq!(read(&mut reader, &stream(&frames), step), Ok(frames));
            prop_assert_eq!(reader.finish(), Ok(()));
        }

        #[test]
        fn any_stream_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), step in 1_usize..100) {
            let _ = read(&mut FrameReader::default(), &bytes, step);
        }
    }

    #[test]
    fn the_longest_frames_have_room() {
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
    fn an_end_inside_a_frame_is_told() {
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
