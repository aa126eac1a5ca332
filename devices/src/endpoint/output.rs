//! The replies that haven't been sent yet.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{HEADER_LENGTH, Kind, Reply, ReplyFrame};
use kvmprof_recording::Share;

/// The number of waiting bytes at which an endpoint stops serving: enough to keep a socket busy. At most one reply
/// exceeds it.
const HIGH_WATER: usize = 256 << 10;

/// Bytes that may always be kept, in three parts of [`HIGH_WATER`] bytes: sent bytes that aren't removed yet, waiting bytes, and the reply to a
/// command or a read.
pub(super) const OWN_BYTES: usize = 3 * HIGH_WATER;

/// A queue of bytes.
#[derive(Debug)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// The number of `bytes` that have been sent.
    gone: usize,
    /// Room for `bytes`.
    share: Share,
}

impl Output {
    /// An empty queue. `share` has [`OWN_BYTES`] of its own.
    pub fn new(share: Share) -> Self {
        Self {
            bytes: Vec::new(),
            gone: 0,
            share,
        }
    }

    /// Maximum number of bytes of data of the next reply: at least almost 256 KiB while the output isn't [full](Self::is_full).
    pub fn room(&self) -> usize {
        let taken = self.bytes.len().saturating_add(HEADER_LENGTH);
        self.share.capacity().saturating_sub(taken)
    }

    /// The bytes to send.
    pub fn waiting(&self) -> &[u8] {
        self.bytes.get(self.gone..).unwrap_or_default()
    }

    /// True if nothing may be added before the client has taken bytes.
    pub fn is_full(&self) -> bool {
        self.waiting().len() >= HIGH_WATER
    }

    /// Removes `count` bytes from the front.
    pub fn consume(&mut self, count: usize) {
        self.gone = self.gone.saturating_add(count).min(self.bytes.len());
        if self.gone == self.bytes.len() {
            self.bytes.clear();
            self.gone = 0;
            // Don't keep a large reply's memory for a client that mostly has small ones.
            self.bytes.shrink_to(HIGH_WATER);
        } else if self.gone >= HIGH_WATER {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
        self.share.force(self.bytes.len());
    }

    /// Appends `reply` to the request `tag` of kind `kind`.
    pub fn answer(&mut self, tag: u32, kind: Kind, reply: Result<Reply<'_>, Errno>) {
        let frame = ReplyFrame {
            tag,
            kind,
            result: reply,
        };
        if !self.append(&frame) {
            // The device gave more than fits into a frame, which is a bug.
            self.append(&ReplyFrame::failure(tag, kind, Errno::EIO));
        }
    }

    fn append(&mut self, frame: &ReplyFrame<'_>) -> bool {
        let start = self.bytes.len();
        self.bytes.resize(start + frame.encoded_length(), 0);
        let written = self
            .bytes
            .get_mut(start..)
            .and_then(|place| frame.encode(place).ok());
        if written.is_none() {
            self.bytes.truncate(start);
        }
        self.share.force(self.bytes.len());
        written.is_some()
    }
}
