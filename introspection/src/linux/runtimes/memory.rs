//! The memory of one process.

use vm_memory::GuestAddress;

use crate::PhysicalMemory;
use crate::Registers;
use crate::linux::LinuxKnowledge;
use kvmprof_paging::{AddressSpace, PAGE, read_paged};

/// Number of pages whose places are remembered: frames and functions of an interpreter are on a few pages.
const PAGES: usize = 32;

/// Reads the memory of a process.
pub trait ProcessMemory {
    /// Fills `buffer` from `address`. `None` if that isn't user memory, or isn't all there.
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Option<()>;

    /// Forgets where memory was found, because the process may have run since.
    fn forget(&mut self) {}

    /// The 64-bit number at `address`.
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// The memory of a process in a guest.
pub struct SpaceMemory<'a, M> {
    memory: &'a M,
    space: &'a AddressSpace<'a, M>,
    /// Virtual and physical addresses of pages; 0 for none.
    pages: [(u64, u64); PAGES],
}

impl<'a, M: PhysicalMemory> SpaceMemory<'a, M> {
    /// The memory that `space` maps.
    pub fn new(memory: &'a M, space: &'a AddressSpace<'a, M>) -> Self {
        Self {
            memory,
            space,
            pages: [(0, 0); PAGES],
        }
    }

    fn page(&mut self, page: u64) -> Option<u64> {
        let index = usize::try_from(page / PAGE % PAGES as u64).ok()?;
        let place = self.pages.get_mut(index)?;
        if place.0 != page || page == 0 {
            *place = (page, self.space.translate(page)?.0);
        }
        Some(place.1)
    }
}

impl<M: PhysicalMemory> ProcessMemory for SpaceMemory<'_, M> {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let end = address.checked_add(buffer.len() as u64)?;
        if end >> 63 != 0 {
            return None;
        }
        let within = address % PAGE;
        if within + buffer.len() as u64 <= PAGE {
            let page = self.page(address - within)?;
            let physical = GuestAddress(page.checked_add(within)?);
            return self.memory.read_physical(physical, buffer);
        }
        let space = self.space;
        read_paged(self.memory, address, buffer, |address| {
            space.translate(address)
        })
    }

    fn forget(&mut self) {
        self.pages = [(0, 0); PAGES];
    }
}

impl LinuxKnowledge {
    /// Registers with which the memory of the process with the page tables at `root` can be read. `None` while the kernel's are unknown.
    pub(super) fn process_registers(&self, root: u64) -> Option<Registers> {
        let kernels = self.modules().kernel_registers(self.placement.get()?)?;
        Some(Registers {
            cr3: root,
            ..kernels
        })
    }
}
