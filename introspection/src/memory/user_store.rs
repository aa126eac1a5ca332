//! Translates a user address for a store, by the rules of the processor (Intel SDM volume 3, sections 4.6 and 4.8).

use vm_memory::GuestAddress;

use super::WritableMemory;
use super::paging::{AddressSpace, FRAME, LARGE, PRESENT, Paging, is_canonical, read_u64};

/// A page-table entry's bit: writes are allowed.
const WRITABLE: u64 = 1 << 1;
/// A page-table entry's bit: user mode may access the page.
const USER: u64 = 1 << 2;
/// A page-table entry's bit: the processor has used the entry.
const ACCESSED: u64 = 1 << 5;
/// A page-table entry's bit: the page has been written.
const DIRTY: u64 = 1 << 6;

/// Why user mode can't write a page now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWritable {
    /// No page is there.
    Absent,
    /// It can only be read.
    ReadOnly,
    /// It is none of user mode's.
    Forbidden,
}

impl<M: WritableMemory> AddressSpace<'_, M> {
    /// The physical address of virtual address `address`, which user mode is about to write: sets the accessed bits, and
    /// the dirty bit, as the processor does.
    ///
    /// # Errors
    /// User mode can't write there, by one of the levels of the page tables. Nothing has changed then.
    pub fn user_store(&self, address: u64) -> Result<GuestAddress, NotWritable> {
        let Paging::Long { root, levels } = self.paging else {
            return Err(NotWritable::Forbidden);
        };
        if address >> 63 != 0 || !is_canonical(address, levels) {
            return Err(NotWritable::Forbidden);
        }
        // Of each level that was walked, where its entry is, and the entry.
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

    /// Sets the accessed bits of all entries and the dirty bit of the last, where they aren't set.
    fn mark(&self, walked: &[(GuestAddress, u64)]) -> Result<(), NotWritable> {
        for (depth, (place, entry)) in walked.iter().enumerate() {
            let bits = if depth + 1 == walked.len() {
                ACCESSED | DIRTY
            } else {
                ACCESSED
            };
            if entry & bits != bits {
                // Another vCPU may have changed the entry since.
                let marked = self.memory.exchange(*place, *entry, entry | bits);
                marked.ok_or(NotWritable::Absent)?;
            }
        }
        Ok(())
    }
}

/// Whether user mode may write by way of this entry.
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
