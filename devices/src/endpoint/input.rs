//! The requests that haven't been served yet.

use kvmprof_abi::wire::MAX_FRAME;
use kvmprof_recording::Share;

use super::EndpointError;

/// Size to which the buffer shrinks between requests, in bytes.
const KEPT: usize = 64 << 10;

/// Bytes as the client sends them.
#[derive(Debug)]
pub(super) struct Input {
    /// At most one incomplete frame, except while the output is full or the turn is over.
    bytes: Vec<u8>,
    /// Room for the incomplete frame.
    share: Share,
    /// Bytes of a refused frame that are yet to come.
    to_skip: usize,
}

impl Input {
    /// An empty buffer, with this room for an incomplete frame.
    pub fn new(share: Share) -> Self {
        Self {
            bytes: Vec::new(),
            share,
            to_skip: 0,
        }
    }

    /// True if nothing waits to be served.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes bytes from the client, except those of a frame that was refused.
    ///
    /// # Errors
    /// [`EndpointError::Overrun`] if as many bytes wait as the longest frame has.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), EndpointError> {
        let skipped = self.to_skip.min(bytes.len());
        self.to_skip -= skipped;
        if self.bytes.len() >= MAX_FRAME {
            return Err(EndpointError::Overrun);
        }
        let bytes = bytes.get(skipped..).unwrap_or_default();
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Moves the bytes out, so that requests can borrow from them. The caller has to return them by [`put_back`](Self::put_back).
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Returns the bytes that were [taken](Self::take). The first `done` of them have been served.
    pub fn put_back(&mut self, bytes: Vec<u8>, done: usize) {
        self.bytes = bytes;
        self.bytes.drain(..done);
        if done > 0 {
            // Don't keep a large request's memory.
            self.bytes.shrink_to(KEPT);
        }
    }

    /// Notes that the frame is complete. It needs no room beyond the bytes that are being served.
    pub fn complete(&mut self) {
        self.share.force(0);
    }

    /// Reserves room for an incomplete frame of `length` bytes. False if there is no room.
    #[must_use]
    pub fn make_room(&mut self, length: usize) -> bool {
        self.share.resize(length)
    }

    /// Throws away the next `count` bytes from the client.
    pub fn skip(&mut self, count: usize) {
        self.to_skip = count;
    }

    /// Frees the buffer's memory.
    pub fn clear(&mut self) {
        self.bytes = Vec::new();
        self.share.force(0);
    }
}
