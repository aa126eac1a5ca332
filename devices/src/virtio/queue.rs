//! Split virtqueues. Their addresses, rings and descriptor chains are untrusted.

use std::collections::VecDeque;
use std::ops::Range;

use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC, VRING_AVAIL_F_NO_INTERRUPT,
};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::GuestMemory;
use super::chain::{Chain, Table, in_memory};
use super::take_over::RingState;

/// The features of queues that the device may offer and the driver may accept: indirect descriptors and the event index
/// (sections 2.7.5.3 and 2.7.7.1).
pub const QUEUE_FEATURES: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC | 1 << VIRTIO_RING_F_EVENT_IDX;

/// Bytes of a descriptor (section 2.7.5).
pub(super) const DESCRIPTOR_SIZE: u64 = 16;
/// Bytes of the available ring without its entries: flags, index, and the used event (2.7.6).
const AVAILABLE_META: u64 = 6;
/// Bytes of an entry of the available ring.
const AVAILABLE_ENTRY: u64 = 2;
/// Bytes of the used ring without its entries (2.7.8).
const USED_META: u64 = 6;
/// Bytes of an entry of the used ring.
const USED_ENTRY: u64 = 8;
/// Maximum number of bytes of one chain: twice the longest frame of the wire protocol.
pub(super) const CHAIN_MAX: u64 = 8 << 20;

/// Why a queue is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The number of entries is zero, no power of two, or too large.
    #[error("A queue of {0} entries is impossible")]
    Size(u32),
    /// An address isn't aligned by section 2.7.
    #[error("A part of the queue isn't aligned")]
    Alignment,
    /// A part isn't in guest memory.
    #[error("A part of the queue lies outside guest memory")]
    OutsideMemory,
    /// Two parts, of this queue or another one, share memory.
    #[error("A part of the queue overlaps another one")]
    Overlap,
    /// More buffers were made available than there are entries.
    #[error("The available ring's index is out of range")]
    AvailableIndex,
    /// A chain that is in progress was made available once more.
    #[error("A descriptor chain was made available twice at a time")]
    Repeated,
    /// A chain contains a descriptor beyond the table.
    #[error("A descriptor's number is beyond the table")]
    DescriptorIndex,
    /// A chain has more descriptors than the table: it is a loop.
    #[error("A descriptor chain is a loop")]
    Loop,
    /// Indirect descriptors weren't negotiated, or the table is no table, or leads to another one.
    #[error("An indirect descriptor that isn't allowed")]
    Indirect,
    /// A buffer for the device to write where one to read is expected, or vice versa.
    #[error("A buffer of the wrong direction")]
    Direction,
    /// A chain without bytes.
    #[error("An empty descriptor chain")]
    Empty,
    /// A chain with too many bytes.
    #[error("A descriptor chain of more than {CHAIN_MAX} bytes")]
    TooLong,
    /// A chain that is too short for its message.
    #[error("A buffer that is too short")]
    TooShort,
    /// A buffer isn't in guest memory.
    #[error("A buffer lies outside guest memory")]
    BufferOutsideMemory,
}

/// The direction of a queue's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads what the driver has written.
    ToDevice,
    /// The device writes for the driver.
    ToDriver,
    /// Each chain is a request, which the device reads, and then room for its answer, which it writes.
    Request,
}

/// The driver's settings for a queue: guest-physical addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLayout {
    /// Number of entries.
    pub size: u32,
    /// Descriptor table ("descriptor area").
    pub descriptors: u64,
    /// Available ring ("driver area").
    pub available: u64,
    /// Used ring ("device area").
    pub used: u64,
}

impl QueueLayout {
    /// The memory of the queue's three parts. `None` if an address wraps around.
    fn ranges(&self) -> Option<[Range<u64>; 3]> {
        let size = u64::from(self.size);
        let range = |start: u64, length: u64| Some(start..start.checked_add(length)?);
        Some([
            range(self.descriptors, DESCRIPTOR_SIZE * size)?,
            range(self.available, AVAILABLE_META + AVAILABLE_ENTRY * size)?,
            range(self.used, USED_META + USED_ENTRY * size)?,
        ])
    }
}

/// One queue. At most one chain of it is in progress.
#[derive(Debug)]
pub struct Virtqueue {
    queue: Queue,
    layout: QueueLayout,
    chain: Option<Chain>,
    /// Heads of chains that the previous server of the queue hasn't finished. They come first.
    left: VecDeque<u16>,
    used: bool,
    indirect: bool,
}

impl Virtqueue {
    /// A queue that isn't set up, of at most `size_max` entries.
    ///
    /// # Errors
    /// [`QueueError::Size`] if `size_max` is no power of two.
    pub fn new(size_max: u16) -> Result<Self, QueueError> {
        Ok(Self {
            queue: Queue::new(size_max).map_err(|_| QueueError::Size(size_max.into()))?,
            layout: QueueLayout::default(),
            chain: None,
            left: VecDeque::new(),
            used: false,
            indirect: false,
        })
    }

    /// Maximum number of entries.
    #[must_use]
    pub fn size_max(&self) -> u16 {
        self.queue.max_size()
    }

    /// True while it is set up.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.queue.ready()
    }

    /// Number of entries of a queue that is set up.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// The layout of a queue that is set up. All parts are in guest memory and aligned.
    #[must_use]
    pub fn layout(&self) -> Option<QueueLayout> {
        self.is_ready().then_some(self.layout)
    }

    /// Restores the initial state, without a chain in progress.
    pub fn reset(&mut self) {
        self.queue.reset();
        self.layout = QueueLayout::default();
        self.chain = None;
        self.left.clear();
        self.used = false;
        self.indirect = false;
    }

    /// Turns on the features among [`QUEUE_FEATURES`] that the driver has accepted.
    pub(super) fn accept(&mut self, features: u64) {
        self.indirect = features >> VIRTIO_RING_F_INDIRECT_DESC & 1 == 1;
        let event_index = features >> VIRTIO_RING_F_EVENT_IDX & 1 == 1;
        self.queue.set_event_idx(event_index);
    }

    /// Sets the queue up at `layout`.
    ///
    /// # Errors
    /// The settings are invalid; the queue isn't set up then.
    pub fn set_up(&mut self, layout: QueueLayout, memory: &GuestMemory) -> Result<(), QueueError> {
        self.reset();
        let size = u16::try_from(layout.size).map_err(|_| QueueError::Size(layout.size))?;
        let bad_size = |_| QueueError::Size(layout.size);
        let misaligned = |_| QueueError::Alignment;
        self.queue.try_set_size(size).map_err(bad_size)?;
        let ranges = layout.ranges().ok_or(QueueError::OutsideMemory)?;
        if !ranges.iter().all(|range| in_memory(memory, range)) {
            return Err(QueueError::OutsideMemory);
        }
        if overlaps(&ranges, &ranges) {
            return Err(QueueError::Overlap);
        }
        self.queue
            .try_set_desc_table_address(GuestAddress(layout.descriptors))
            .map_err(misaligned)?;
        self.queue
            .try_set_avail_ring_address(GuestAddress(layout.available))
            .map_err(misaligned)?;
        self.queue
            .try_set_used_ring_address(GuestAddress(layout.used))
            .map_err(misaligned)?;
        self.queue.set_ready(true);
        self.layout = layout;
        Ok(())
    }

    /// Takes over a queue from another program, which doesn't access it any more. The chains that the program hasn't returned come
    /// first, as far as the rings show them.
    ///
    /// # Errors
    /// The rings are inconsistent. The queue must be reset.
    pub fn take_over(&mut self, memory: &GuestMemory) -> Result<(), QueueError> {
        let Some(layout) = self.layout() else {
            return Ok(());
        };
        let standing = RingState::read(memory, &layout)?;
        self.queue.set_next_avail(standing.available);
        self.queue.set_next_used(standing.used);
        self.left = standing.in_progress;
        Ok(())
    }

    /// Whether a queue at `layout` would share memory with this one. False if this one isn't set up.
    #[must_use]
    pub fn overlaps(&self, layout: &QueueLayout) -> bool {
        match (self.layout.ranges(), layout.ranges()) {
            (Some(mine), Some(other)) => self.is_ready() && overlaps(&mine, &other),
            _ => false,
        }
    }

    /// Whether there is a chain of buffers of this direction to work on. Takes the next one if none is in progress.
    ///
    /// # Errors
    /// The ring or the chain is invalid. The queue must be reset.
    pub fn begin(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
    ) -> Result<bool, QueueError> {
        if self.chain.is_none() && self.is_ready() {
            let mut head = self.next_head(memory)?;
            if head.is_none() && self.queue.event_idx_enabled() {
                // From now on the driver notifies the device of the next chain. That chain may have come just before.
                let more = self.queue.enable_notification(memory);
                if more.map_err(|_| QueueError::OutsideMemory)? {
                    head = self.next_head(memory)?;
                }
            }
            if let Some(head) = head {
                self.chain = Some(Chain::read(memory, self.table(), head, direction)?);
            }
        }
        Ok(self.chain.is_some())
    }

    fn next_head(&mut self, memory: &GuestMemory) -> Result<Option<u16>, QueueError> {
        if let Some(head) = self.left.pop_front() {
            return Ok(Some(head));
        }
        let mut available = self
            .queue
            .iter(memory)
            .map_err(|_| QueueError::AvailableIndex)?;
        Ok(available.next().map(|chain| chain.head_index()))
    }

    fn table(&self) -> Table {
        Table {
            address: self.queue.desc_table(),
            length: self.size(),
            indirect_max: if self.indirect { self.size_max() } else { 0 },
        }
    }

    /// True while a chain has been taken and not finished.
    #[must_use]
    pub fn in_progress(&self) -> bool {
        self.chain.is_some()
    }

    /// Bytes that are left to read or write in the chain in progress.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.readable() + self.writable()
    }

    /// Bytes that are left to read in the chain in progress.
    #[must_use]
    pub fn readable(&self) -> usize {
        (self.chain.as_ref()).map_or(0, |chain| chain.input.remaining())
    }

    /// Bytes that are left to write in the chain in progress.
    #[must_use]
    pub fn writable(&self) -> usize {
        (self.chain.as_ref()).map_or(0, |chain| chain.output.remaining())
    }

    /// Reads the next bytes of the chain in progress and returns their number, which is smaller than requested at its
    /// end.
    ///
    /// # Errors
    /// Guest memory can't be read.
    pub fn read(&mut self, memory: &GuestMemory, bytes: &mut [u8]) -> Result<usize, QueueError> {
        let Some(chain) = &mut self.chain else {
            return Ok(0);
        };
        (chain.input).advance(bytes.len(), |address, done, length| {
            let target = bytes.get_mut(done..done + length).unwrap_or_default();
            memory.read_slice(target, address)
        })
    }

    /// Writes into the chain in progress and returns the number of bytes that had room.
    ///
    /// # Errors
    /// Guest memory can't be written.
    pub fn write(&mut self, memory: &GuestMemory, bytes: &[u8]) -> Result<usize, QueueError> {
        let Some(chain) = &mut self.chain else {
            return Ok(0);
        };
        (chain.output).advance(bytes.len(), |address, done, length| {
            let source = bytes.get(done..done + length).unwrap_or_default();
            memory.write_slice(source, address)
        })
    }

    /// Skips the next bytes to write, which keep their contents.
    pub fn skip_output(&mut self, bytes: usize) {
        if let Some(chain) = &mut self.chain {
            // Nothing is moved, so that nothing fails.
            let _ = (chain.output).advance(bytes, |_, _, _| Ok::<_, QueueError>(()));
        }
    }

    /// Returns the chain in progress to the driver.
    ///
    /// # Errors
    /// Guest memory can't be written.
    pub fn finish(&mut self, memory: &GuestMemory) -> Result<(), QueueError> {
        let Some(chain) = self.chain.take() else {
            return Ok(());
        };
        self.queue
            .add_used(memory, chain.head, chain.output.done)
            .map_err(|_| QueueError::OutsideMemory)?;
        self.used = true;
        Ok(())
    }

    /// Whether chains were finished since the last call and the driver wants an interrupt.
    pub fn take_interrupt(&mut self, memory: &GuestMemory) -> bool {
        if !std::mem::take(&mut self.used) || !self.is_ready() {
            return false;
        }
        if self.queue.event_idx_enabled() {
            // If the driver's event index can't be read, it gets the interrupt: one too many does no harm.
            return self.queue.needs_notification(memory).unwrap_or(true);
        }
        // The fence comes after the write of the used index. Otherwise both sides could miss each other's change (2.7.7.2).
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let flags = memory.read_obj::<u16>(GuestAddress(self.queue.avail_ring()));
        u32::from(flags.map_or(0, u16::from_le)) & VRING_AVAIL_F_NO_INTERRUPT == 0
    }
}

/// Whether any range of `some` shares a byte with one of `others`, or with another one of `some`.
fn overlaps(some: &[Range<u64>; 3], others: &[Range<u64>; 3]) -> bool {
    some.iter().enumerate().any(|(index, one)| {
        others.iter().enumerate().any(|(other_index, other)| {
            let same = std::ptr::eq(some, others) && index == other_index;
            !same && one.start < other.end && other.start < one.end
        })
    })
}
