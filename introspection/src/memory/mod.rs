//! A guest's physical memory, and its virtual memory by its page tables.

mod paging;

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

pub use paging::AddressSpace;
pub(crate) use paging::{CR0_PG, CR4_LA57, EFER_LMA, FRAME, PAGE, PTI_USER, read_paged, read_u64};
#[cfg(any(test, feature = "testing"))]
pub(crate) use paging::{LARGE, PRESENT};

/// A guest's physical memory. The guest may change it at any moment.
pub trait PhysicalMemory {
    /// Fills `buffer` from guest-physical address `address`. `None` if a part isn't guest memory; the buffer's contents
    /// are unspecified then.
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()>;

    /// Whether guest-physical address `address` is guest memory.
    fn contains(&self, address: GuestAddress) -> bool;
}

/// Memory that this process has mapped.
impl PhysicalMemory for GuestMemoryMmap<()> {
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()> {
        let slice = self.get_slice(address, buffer.len()).ok()?;
        slice.read_slice(buffer, 0).ok()
    }

    fn contains(&self, address: GuestAddress) -> bool {
        self.address_in_range(address)
    }
}
