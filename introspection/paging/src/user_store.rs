//! Translates a user address for a write, by the rules of the processor (Intel SDM volume 3, sections 4.6 and 4.8).

use vm_memory::GuestAddress;

use super::WritableMemory;
use super::address_space::{AddressSpace, FRAME, LARGE, PRESENT, Paging, is_canonical, read_u64};

/// A page-table entry's bit: writes are allowed.
pub const WRITABLE: u64 = 1 << 1;
/// A page-table entry's bit: user mode may access the page.
pub const USER: u64 = 1 << 2;
/// A page-table entry's bit: the processor has used the entry.
pub const ACCESSED: u64 = 1 << 5;
/// A page-table entry's bit: the page has been written.
pub const DIRTY: u64 = 1 << 6;

/// Why user mode can't write a page now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWritable {
    /// No page is mapped.
    Absent,
    /// The page is read-only.
    ReadOnly,
    /// The page doesn't belong to user mode.
    Forbidden,
}

impl<M: WritableMemory> AddressSpace<'_, M> {
    /// The physical address of virtual address `address`, which user mode is about to write. Sets the accessed bits and
    /// the dirty bit, as the processor does.
    ///
    /// # Errors
    /// A level of the page tables doesn't allow user mode to write there. Nothing has changed then.
    pub fn user_store(&self, address: u64) -> Result<GuestAddress, NotWritable> {
        let Paging::Long { root, levels } = self.paging else {
            return Err(NotWritable::Forbidden);
        };
        if address >> 63 != 0 || !is_canonical(address, levels) {
            return Err(NotWritable::Forbidden);
        }
        // The place and the value of the entry at each level that was walked.
        let mut walked = [(GuestAddress(0), 0); 5];
        let mut table = root;
        for (depth, level) in (1..=levels).rev().enumerate() {
            let shift = 12 + 9 * (level - 1);
            let place = GuestAddress(table + (address >> shift & 0x1ff) * 8);
            let entry = read_u64(self.memory, place).ok_or(NotWritable::Absent)?;
            check(entry)?;
            if let Some(step) = walked.get_mut(depth) {
                *step = (place, entry);
            }
            let is_large = matches!(level, 2 | 3) && entry & LARGE != 0;
            if is_large || level == 1 {
                let within = (1 << shift) - 1;
                let physical = GuestAddress(entry & FRAME & !within | address & within);
                self.mark(walked.get(..=depth).unwrap_or_default())?;
                return Ok(physical);
            }
            table = entry & FRAME;
        }
        Err(NotWritable::Absent)
    }

    /// Sets the accessed bits of all entries and the dirty bit of the last one, if they aren't set.
    fn mark(&self, walked: &[(GuestAddress, u64)]) -> Result<(), NotWritable> {
        for (depth, (place, entry)) in walked.iter().enumerate() {
            let bits = if depth + 1 == walked.len() {
                ACCESSED | DIRTY
            } else {
                ACCESSED
            };
            if entry & bits != bits {
                // Another vCPU may have changed the entry meanwhile.
                let marked = self.memory.exchange(*place, *entry, entry | bits);
                marked.ok_or(NotWritable::Absent)?;
            }
        }
        Ok(())
    }
}

/// Checks that user mode may write through this entry.
fn check(entry: u64) -> Result<(), NotWritable> {
    if entry & PRESENT == 0 {
        Err(NotWritable::Absent)
    } else if entry & USER == 0 {
        Err(NotWritable::Forbidden)
    } else if entry & WRITABLE == 0 {
        Err(NotWritable::ReadOnly)
    } else {
        Ok(())
    }
}
