//! A recording that a client reads while it is made.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{Delivered, Encoded, QueuedBlock, Sink, beginning};
use crate::file::RecordingInfo;
use crate::{QueueBudget, Share};

/// Encoded bytes, and the ticks that are accounted for when they have been read.
#[derive(Debug)]
struct QueuedBytes {
    bytes: Encoded,
    samples: u64,
    idle: u64,
}

/// Keeps a recording's bytes until the client has read them.
#[derive(Debug)]
pub struct ClientSink {
    queue: VecDeque<QueuedBytes>,
    /// The number of bytes in the queue, including those of its first part that have been read.
    queued: usize,
    /// How many bytes of the first part have been read.
    read: usize,
    /// The queue's share of the room.
    share: Share,
    delivered: Delivered,
    /// For each limit, the size of the last part that didn't fit. Until there is room for it, no other part is packed: for a client that
    /// doesn't read, that would be wasted work.
    refused: BTreeMap<usize, usize>,
    is_finished: bool,
}

impl ClientSink {
    /// Bytes that each recording can always keep, however many others wait: a kernel's functions, and the samples of some seconds.
    pub const OWN_BYTES: usize = 4 << 20;

    /// A recording that begins with `info`.
    pub fn new(info: &RecordingInfo) -> Self {
        Self::within(info, &QueueBudget::unlimited())
    }

    /// The same. Bytes beyond [`OWN_BYTES`](Self::OWN_BYTES) count in `room`, and are refused if they don't fit there.
    pub fn within(info: &RecordingInfo, room: &Arc<QueueBudget>) -> Self {
        let bytes = beginning(info);
        let mut share = Share::new(room, Self::OWN_BYTES);
        share.force(bytes.len());
        Self {
            queued: bytes.len(),
            share,
            queue: VecDeque::from([QueuedBytes {
                bytes: Encoded::Own(bytes),
                samples: 0,
                idle: 0,
            }]),
            read: 0,
            delivered: Delivered::default(),
            refused: BTreeMap::new(),
            is_finished: false,
        }
    }

    /// Whether [`read`](Self::read) would return bytes or the end.
    pub fn is_readable(&self) -> bool {
        self.is_finished || !self.queue.is_empty()
    }

    /// The next bytes of the recording, at most `limit`; an empty vector at its end. `None` while there is nothing to read yet.
    pub fn read(&mut self, limit: usize) -> Option<Vec<u8>> {
        if self.queue.is_empty() {
            return self.is_finished.then(Vec::new);
        }
        let mut bytes = Vec::with_capacity(limit.min(self.waiting()));
        while let Some(first) = self.queue.front() {
            let rest = first.bytes.get(self.read..).unwrap_or_default();
            let taken = rest.len().min(limit - bytes.len());
            bytes.extend_from_slice(&rest[..taken]);
            self.read += taken;
            if taken < rest.len() {
                break;
            }
            self.end_of_first();
        }
        Some(bytes)
    }

    /// How many more bytes may wait if at most `limit` bytes of this recording may.
    fn room(&self, limit: usize) -> usize {
        let own = limit.saturating_sub(self.waiting());
        // The end always fits, because it completes the account.
        match limit {
            usize::MAX => own,
            _ => own.min(self.share.capacity().saturating_sub(self.queued)),
        }
    }

    /// Removes the first part, which has been read.
    fn end_of_first(&mut self) {
        if let Some(part) = self.queue.pop_front() {
            self.read = 0;
            self.queued -= part.bytes.len();
            self.share.force(self.queued);
            self.delivered.samples += part.samples;
            self.delivered.idle += part.idle;
        }
    }
}

impl Sink for ClientSink {
    const CAPACITY: usize = 32 << 20;

    fn put(&mut self, part: QueuedBlock, limit: usize) -> Result<(), QueuedBlock> {
        let room = self.room(limit);
        if self.refused.get(&limit).is_some_and(|bytes| *bytes > room) {
            return Err(part);
        }
        let Some(bytes) = part.encode() else {
            return Ok(());
        };
        if bytes.len() > room {
            self.refused.insert(limit, bytes.len());
            return Err(part);
        }
        self.refused.remove(&limit);
        let (samples, idle) = part.counts();
        self.queued += bytes.len();
        self.share.force(self.queued);
        self.queue.push_back(QueuedBytes {
            bytes,
            samples,
            idle,
        });
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.queued - self.read
    }

    fn delivered(&self) -> Delivered {
        self.delivered
    }

    fn is_open(&self) -> bool {
        !self.is_finished
    }

    fn finish(&mut self) {
        self.is_finished = true;
    }
}
