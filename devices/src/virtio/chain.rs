//! Descriptor chains: read from guest memory once and checked, then read and written in steps.

use std::ops::Range;

use virtio_bindings::bindings::virtio_ring::{
    VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend};

use super::GuestMemory;
use super::queue::{CHAIN_MAX, DESCRIPTOR_SIZE, Direction, QueueError};

/// A table of descriptors in guest memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub address: u64,
    pub length: u16,
    /// Maximum length of an indirect table; 0 if descriptors may not refer to indirect tables.
    pub indirect_max: u16,
}

/// A piece of guest memory of a descriptor, checked to exist.
#[derive(Clone, Copy, Debug)]
struct MemoryRange {
    address: GuestAddress,
    length: u32,
}

/// Pieces that are read or written once, from the first byte to the last.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    pieces: Vec<MemoryRange>,
    /// Index of the first incomplete piece, and the number of bytes done in it.
    piece: usize,
    offset: u32,
    /// Number of bytes done of all pieces.
    pub done: u32,
}

/// A chain. It is read from guest memory once, so later changes by the driver have no effect.
#[derive(Debug, Default)]
pub(super) struct Chain {
    pub head: u16,
    /// The pieces that the device reads.
    pub input: Cursor,
    /// The pieces that the device writes.
    pub output: Cursor,
}

impl Cursor {
    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        let rest = self.pieces.get(self.piece..).unwrap_or_default();
        let bytes: usize = rest.iter().map(|piece| piece.length as usize).sum();
        bytes.saturating_sub(self.offset as usize)
    }

    /// Advances by `length` bytes, or to the end, and returns by how many. `transfer` moves bytes: the guest's address, the
    /// number already moved, the number to move.
    pub fn advance<E>(
        &mut self,
        length: usize,
        mut transfer: impl FnMut(GuestAddress, usize, usize) -> Result<(), E>,
    ) -> Result<usize, QueueError> {
        let mut moved = 0;
        while moved < length {
            let Some(piece) = self.pieces.get(self.piece) else {
                break;
            };
            let wanted = u32::try_from(length - moved).unwrap_or(u32::MAX);
            let step = wanted.min(piece.length - self.offset);
            let address = piece
                .address
                .checked_add(self.offset.into())
                .ok_or(QueueError::BufferOutsideMemory)?;
            transfer(address, moved, step as usize).map_err(|_| QueueError::BufferOutsideMemory)?;
            moved += step as usize;
            self.done += step;
            self.offset += step;
            if self.offset == piece.length {
                self.piece += 1;
                self.offset = 0;
            }
        }
        Ok(moved)
    }
}

impl Chain {
    /// Reads and checks all descriptors of the chain that starts with number `head` of `table`.
    pub fn read(
        memory: &GuestMemory,
        mut table: Table,
        head: u16,
        direction: Direction,
    ) -> Result<Self, QueueError> {
        let mut chain = Self {
            head,
            ..Self::default()
        };
        let mut reader = Reader {
            memory,
            direction,
            total: 0,
        };
        let (mut next, mut left) = (head, table.length);
        while left > 0 {
            left -= 1;
            let descriptor = reader.descriptor(table, next)?;
            let flags = u32::from(descriptor.flags());
            if flags & VRING_DESC_F_INDIRECT != 0 {
                // An indirect descriptor ends the chain: it may not have a successor (section 2.7.5.3.1).
                if flags & VRING_DESC_F_NEXT != 0 {
                    return Err(QueueError::Indirect);
                }
                table = table.indirect(descriptor)?;
                (next, left) = (0, table.length);
                continue;
            }
            reader.add(&mut chain, descriptor)?;
            if flags & VRING_DESC_F_NEXT == 0 {
                return reader.whole(chain);
            }
            next = descriptor.next();
        }
        Err(QueueError::Loop)
    }
}

impl Table {
    /// The table that `descriptor` leads to (section 2.7.5.3). It allows no further one.
    fn indirect(self, descriptor: Descriptor) -> Result<Self, QueueError> {
        let bytes = u64::from(descriptor.len());
        let length = u16::try_from(bytes / DESCRIPTOR_SIZE).map_err(|_| QueueError::Indirect)?;
        if length == 0 || bytes % DESCRIPTOR_SIZE != 0 || length > self.indirect_max {
            return Err(QueueError::Indirect);
        }
        Ok(Self {
            address: descriptor.addr().0,
            length,
            indirect_max: 0,
        })
    }
}

/// Reads one chain.
struct Reader<'a> {
    memory: &'a GuestMemory,
    direction: Direction,
    total: u64,
}

impl Reader<'_> {
    fn add(&mut self, chain: &mut Chain, descriptor: Descriptor) -> Result<(), QueueError> {
        let is_output = u32::from(descriptor.flags()) & VRING_DESC_F_WRITE != 0;
        let allowed = match self.direction {
            Direction::ToDevice => !is_output,
            Direction::ToDriver => is_output,
            // The pieces that the device reads come first (section 2.7.4.2).
            Direction::Request => is_output || chain.output.pieces.is_empty(),
        };
        if !allowed {
            return Err(QueueError::Direction);
        }
        let start = descriptor.addr().0;
        let end = start.checked_add(descriptor.len().into());
        let end = end.ok_or(QueueError::BufferOutsideMemory)?;
        if start < end {
            if !in_memory(self.memory, &(start..end)) {
                return Err(QueueError::BufferOutsideMemory);
            }
            let side = if is_output {
                &mut chain.output
            } else {
                &mut chain.input
            };
            side.pieces.push(MemoryRange {
                address: descriptor.addr(),
                length: descriptor.len(),
            });
        }
        self.total += u64::from(descriptor.len());
        if self.total > CHAIN_MAX {
            return Err(QueueError::TooLong);
        }
        Ok(())
    }

    fn whole(&self, chain: Chain) -> Result<Chain, QueueError> {
        if self.total == 0 {
            Err(QueueError::Empty)
        } else {
            Ok(chain)
        }
    }

    fn descriptor(&self, table: Table, index: u16) -> Result<Descriptor, QueueError> {
        if index >= table.length {
            return Err(QueueError::DescriptorIndex);
        }
        let offset = u64::from(index) * DESCRIPTOR_SIZE;
        let address = GuestAddress(table.address).checked_add(offset);
        let address = address.ok_or(QueueError::OutsideMemory)?;
        self.memory
            .read_obj(address)
            .map_err(|_| QueueError::OutsideMemory)
    }
}

pub(super) fn in_memory(memory: &GuestMemory, range: &Range<u64>) -> bool {
    usize::try_from(range.end - range.start)
        .is_ok_and(|length| memory.check_range(GuestAddress(range.start), length))
}
