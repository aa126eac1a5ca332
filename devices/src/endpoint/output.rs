//! The replies that haven't been sent yet.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Kind, Reply, ReplyFrame};

/// The number of waiting bytes at which an endpoint stops serving: enough to keep a socket busy. At most one reply
/// exceeds it.
const HIGH_WATER: usize = 256 << 10;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// The number of `bytes` that have been sent.
    gone: usize,
}

impl Output {
    /// The bytes to send.
    pub fn waiting(&self) -> &[u8] {
        self.bytes.get(self.gone..).unwrap_or_default()
    }

    /// True if nothing may be added before the client takes something.
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
        written.is_some()
    }
}
