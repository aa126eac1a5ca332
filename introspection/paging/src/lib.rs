//! A guest's physical memory, and its virtual memory according to a vCPU's registers and its page tables.
//!
//! Everything read from a guest is untrusted: walks are bounded, and addresses are checked against guest memory.
#![forbid(unsafe_code)]

mod address_space;
pub mod bytes;
#[cfg(feature = "kvm-bindings")]
mod kvm;
mod mapped;
mod registers;
mod user_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory};

pub use address_space::{
    AddressSpace, CR0_PG, CR4_LA57, EFER_LMA, FRAME, LARGE, PAGE, PRESENT, PTI_USER, read_paged,
    read_u64,
};
#[cfg(feature = "kvm-bindings")]
pub use kvm::select_registers;
pub use mapped::MappedRange;
pub use registers::Registers;
pub use user_store::{ACCESSED, DIRTY, NotWritable, USER, WRITABLE};

/// A guest's physical memory. The guest may change it at any time.
pub trait PhysicalMemory {
    /// Fills `buffer` from guest-physical address `address`. `None` if a part isn't guest memory; the buffer's contents
    /// are unspecified then.
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()>;

    /// Whether guest-physical address `address` is guest memory.
    fn contains(&self, address: GuestAddress) -> bool;

    /// Begins the reads for one sample. Until [`end_sample`](Self::end_sample), memory that takes a request for each read may read more than asked for, and once.
    fn begin_sample(&self) {}

    /// Ends the reads for one sample.
    fn end_sample(&self) {}

    /// The `N` bytes at guest-physical address `address`. `None` if a part isn't guest memory.
    fn read_array<const N: usize>(&self, address: GuestAddress) -> Option<[u8; N]>
    where
        Self: Sized,
    {
        let mut bytes = [0; N];
        self.read_physical(address, &mut bytes)?;
        Some(bytes)
    }
}

/// Physical memory that can also be written: the memory of a guest that this process runs.
pub trait WritableMemory: PhysicalMemory {
    /// Writes `bytes` to guest-physical address `address`. Writes of 2 or 8 bytes to a multiple of their number are
    /// atomic. `None` if a part isn't guest memory; nothing was written then.
    fn write_physical(&self, address: GuestAddress, bytes: &[u8]) -> Option<()>;

    /// Replaces the 64-bit number at guest-physical address `address`, a multiple of 8, with `new`, if it is `current`.
    /// `None` if it is another number, or isn't in guest memory.
    fn exchange(&self, address: GuestAddress, current: u64, new: u64) -> Option<()>;
}

/// A guest's memory that several threads share, for a guest of this or another VMM.
pub type SharedMemory = Arc<dyn PhysicalMemory + Send + Sync>;

impl<M: PhysicalMemory + ?Sized> PhysicalMemory for Arc<M> {
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()> {
        (**self).read_physical(address, buffer)
    }

    fn contains(&self, address: GuestAddress) -> bool {
        (**self).contains(address)
    }

    fn begin_sample(&self) {
        (**self).begin_sample();
    }

    fn end_sample(&self) {
        (**self).end_sample();
    }
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

impl WritableMemory for GuestMemoryMmap<()> {
    fn write_physical(&self, address: GuestAddress, bytes: &[u8]) -> Option<()> {
        let slice = self.get_slice(address, bytes.len()).ok()?;
        let is_aligned = address.0.is_multiple_of(bytes.len() as u64);
        match *bytes {
            [a, b] if is_aligned => {
                let place = slice.get_atomic_ref::<AtomicU16>(0).ok()?;
                place.store(u16::from_ne_bytes([a, b]), Ordering::Relaxed);
            }
            [a, b, c, d, e, f, g, h] if is_aligned => {
                let place = slice.get_atomic_ref::<AtomicU64>(0).ok()?;
                let word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                place.store(word, Ordering::Relaxed);
            }
            _ => slice.write_slice(bytes, 0).ok()?,
        }
        Some(())
    }

    fn exchange(&self, address: GuestAddress, current: u64, new: u64) -> Option<()> {
        let slice = self.get_slice(address, size_of::<u64>()).ok()?;
        let place = slice.get_atomic_ref::<AtomicU64>(0).ok()?;
        let exchanged = place.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed);
        exchanged.ok().map(|_| ())
    }
}
