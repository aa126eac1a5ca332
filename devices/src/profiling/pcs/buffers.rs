//! The device's buffers: one that is being filled, a queue of those ready to be read, and the free ones.

use std::collections::VecDeque;

use kvmprof_abi::pcs::{BSIZE, DEF_BUFNO, Format, Header, Record};

/// The result of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) bytes: usize,
    /// Ticks in unmerged records that were read to their last byte.
    pub(super) recorded: u64,
    /// Ticks in merged records that were read to their last byte.
    pub(super) merged: u64,
}

/// The buffers of an open device. Only buffers in use take memory.
#[derive(Debug)]
pub(super) struct Buffers {
    format: Format,
    buffer_size: usize,
    /// The number of all buffers.
    total: usize,
    filling: Option<Vec<u8>>,
    ready: VecDeque<SealedBuffer>,
    /// The number of bytes of the first of `ready` that have been read.
    position: usize,
    /// Lost samples that no header has reported yet.
    lost: u64,
}

#[derive(Debug)]
struct SealedBuffer {
    bytes: Vec<u8>,
    records: usize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            format: Format::default(),
            buffer_size: BSIZE,
            total: DEF_BUFNO,
            filling: None,
            ready: VecDeque::new(),
            position: 0,
            lost: 0,
        }
    }
}

impl Buffers {
    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(super) fn buffer_size(&self) -> usize {
        self.buffer_size
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Sets the format; only before the first record.
    pub(super) fn set_format(&mut self, format: Format) {
        self.format = format;
    }

    /// Sets the bytes in a buffer; only before the first record.
    pub(super) fn set_buffer_size(&mut self, size: usize) {
        self.buffer_size = size;
    }

    pub(super) fn add(&mut self, buffers: usize) {
        self.total += buffers;
    }

    fn has_free(&self) -> bool {
        self.ready.len() + usize::from(self.filling.is_some()) < self.total
    }

    /// True if the next [`Buffers::put`] will succeed.
    pub(super) fn has_room(&self) -> bool {
        self.filling.is_some() || self.has_free()
    }

    /// True when there is something to read.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// True if nothing is left: no record, and no count of lost samples.
    pub(super) fn is_drained(&self) -> bool {
        self.ready.is_empty() && self.filling.is_none() && self.lost == 0
    }

    /// Counts lost samples for the next header.
    pub(super) fn lose(&mut self, samples: u64) {
        self.lost += samples;
    }

    /// Adds a record; false if there is no free buffer for it.
    pub(super) fn put(&mut self, record: &Record) -> bool {
        if !self.has_room() {
            return false;
        }
        let (format, size) = (self.format, self.buffer_size);
        let filling = self
            .filling
            .get_or_insert_with(|| empty_buffer(format, size));
        filling.extend_from_slice(&record.encode(format));
        if filling.len() + format.record_size() > size {
            self.seal();
        }
        true
    }

    /// Makes the partly filled buffer ready, or else a free buffer if samples were lost. False if there was no such
    /// buffer.
    pub(super) fn seal(&mut self) -> bool {
        let bytes = match self.filling.take() {
            Some(bytes) => bytes,
            None if self.lost > 0 && self.has_free() => empty_buffer(self.format, self.buffer_size),
            None => return false,
        };
        let sealed = self.finish(bytes);
        self.ready.push_back(sealed);
        true
    }

    fn finish(&mut self, mut bytes: Vec<u8>) -> SealedBuffer {
        let header_size = self.format.header_size();
        let lost = u32::try_from(self.lost)
            .unwrap_or(u32::MAX)
            .min(self.format.max_lost());
        self.lost -= u64::from(lost);
        let unused = self.buffer_size.saturating_sub(bytes.len());
        let header = Header {
            // No buffer is larger than 64 KiB, and the header doesn't count as unused.
            unused: u16::try_from(unused).unwrap_or(u16::MAX),
            lost,
        };
        let records = (bytes.len() - header_size) / self.format.record_size();
        for (to, from) in bytes.iter_mut().zip(header.encode(self.format).iter()) {
            *to = *from;
        }
        bytes.resize(self.buffer_size, 0);
        SealedBuffer { bytes, records }
    }

    /// Appends at most `limit` bytes of the first ready buffer to `out`.
    pub(super) fn read_first(&mut self, limit: usize, out: &mut Vec<u8>) -> Delivery {
        let Some(first) = self.ready.front() else {
            return Delivery::default();
        };
        let rest = first.bytes.get(self.position..).unwrap_or_default();
        let taken = rest.get(..limit).unwrap_or(rest);
        out.extend_from_slice(taken);
        let end = self.position + taken.len();
        let mut delivery = Delivery {
            bytes: taken.len(),
            ..Delivery::default()
        };
        for record in first.records_between(self.position, end, self.format) {
            match record {
                Record::Sample(_) => delivery.recorded += 1,
                Record::Merged(merged) => delivery.merged += u64::from(merged.count),
            }
        }
        self.position = end;
        if end == first.bytes.len() {
            self.ready.pop_front();
            self.position = 0;
        }
        delivery
    }
}

impl SealedBuffer {
    /// The records with their last byte in `start..end`.
    fn records_between(
        &self,
        start: usize,
        end: usize,
        format: Format,
    ) -> impl Iterator<Item = Record> {
        let (header, size) = (format.header_size(), format.record_size());
        let ended = move |position: usize| position.saturating_sub(header) / size;
        let first = ended(start).min(self.records);
        let last = ended(end).min(self.records);
        (first..last).filter_map(move |index| {
            Record::decode(format, self.bytes.get(header + index * size..)?)
        })
    }
}

/// A buffer with room for its header.
fn empty_buffer(format: Format, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    bytes.resize(format.header_size(), 0);
    bytes
}
