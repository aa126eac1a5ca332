//! Extracts the records from the device's buffers.

use kvmprof_abi::pcs::{Format, Header};

/// Splits a byte stream, in pieces of any length, into buffers.
#[derive(Debug)]
pub struct Deblocker {
    format: Format,
    buffer_size: usize,
    pending: Vec<u8>,
    /// The sum of the lost samples in all headers.
    lost: u64,
}

/// The header of a buffer contradicts its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pcs delivered a malformed buffer")]
pub struct BadBuffer;

impl Deblocker {
    /// A deblocker for buffers of `buffer_size` bytes, their headers included.
    pub fn new(format: Format, buffer_size: usize) -> Self {
        Self {
            format,
            buffer_size,
            pending: Vec::new(),
            lost: 0,
        }
    }

    /// The number of samples that the device has lost, by the headers so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// True if the last buffer is complete.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes `bytes` and appends the records of complete buffers to `records`.
    ///
    /// # Errors
    /// [`BadBuffer`]; the rest of the stream is unusable then.
    pub fn push(&mut self, bytes: &[u8], records: &mut Vec<u8>) -> Result<(), BadBuffer> {
        self.pending.extend_from_slice(bytes);
        let complete = self.pending.len() - self.pending.len() % self.buffer_size.max(1);
        let rest = self.pending.split_off(complete);
        let buffers = std::mem::replace(&mut self.pending, rest);
        for buffer in buffers.chunks_exact(self.buffer_size.max(1)) {
            let header = Header::decode(self.format, buffer).ok_or(BadBuffer)?;
            let end = buffer
                .len()
                .checked_sub(header.unused.into())
                .ok_or(BadBuffer)?;
            let data = buffer
                .get(self.format.header_size()..end)
                .ok_or(BadBuffer)?;
            if data.len() % self.format.record_size() != 0 {
                return Err(BadBuffer);
            }
            self.lost += u64::from(header.lost);
            records.extend_from_slice(data);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(records: u8, lost: u32) -> Vec<u8> {
        let unused = 1024 - 8 - u16::from(records) * 16;
        let mut bytes = Header { unused, lost }.encode(Format::Native).to_vec();
        for record in 0..records {
            bytes.extend([record; 16]);
        }
        bytes.resize(1024, 0);
        bytes
    }

    #[test]
    fn buffers_in_pieces_give_the_same_records() {
        let bytes = [buffer(63, 2), buffer(1, 3), buffer(0, 4)].concat();
        for size in [1, 7, 1024, 1500, 4096] {
            let mut deblocker = Deblocker::new(Format::Native, 1024);
            let mut records = Vec::new();
            for piece in bytes.chunks(size) {
                deblocker.push(piece, &mut records).unwrap();
            }
            assert_eq!(records.len(), 64 * 16);
            assert_eq!(deblocker.lost(), 9);
            assert!(deblocker.is_empty());
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        for unused in [9_u16, 1017, 1025, u16::MAX] {
            let mut bytes = Header { unused, lost: 0 }.encode(Format::Native).to_vec();
            bytes.resize(1024, 0);
            let mut deblocker = Deblocker::new(Format::Native, 1024);
            let pushed = deblocker.push(&bytes, &mut Vec::new());
            assert_eq!(pushed, Err(BadBuffer), "{unused}");
        }
    }
}
