//! The replies that the client hasn't taken yet.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Kind, Reply, ReplyFrame};

/// Bytes waiting at which an endpoint stops serving: enough to keep a socket busy. Beyond it
/// goes at most the one reply that crossed it.
const HIGH_WATER: usize = 256 << 10;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    /// How many of `bytes` have gone already.
    gone: usize,
}

impl Output {
    /// What waits.
    pub fn waiting(&self) -> &[u8] {
        self.bytes.get(self.gone..).unwrap_or_default()
    }

    /// True when nothing more should be added before the client takes something.
    pub fn is_full(&self) -> bool {
        self.waiting().len() >= HIGH_WATER
    }

    /// Takes `count` bytes off the front.
    pub fn consume(&mut self, count: usize) {
        self.gone = self.gone.saturating_add(count).min(self.bytes.len());
        if self.gone == self.bytes.len() {
            self.bytes.clear();
            self.gone = 0;
            // A large reply's memory isn't kept for a client that mostly sends small ones.
            self.bytes.shrink_to(HIGH_WATER);
        } else if self.gone >= HIGH_WATER {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
    }

    /// Appends the answer `reply` to the request `tag` of kind `kind`.
    pub fn answer(&mut self, tag: u32, kind: Kind, reply: Result<Reply<'_>, Errno>) {
        let frame = ReplyFrame {
            tag,
            kind,
            result: reply,
        };
        if !self.append(&frame) {
            // The device gave more than any frame takes, which it must not.
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
