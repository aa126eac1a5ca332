//! Reading the kernel's memory, whatever page tables the vCPU happens to use.

use std::ops::Range;
use std::sync::atomic::Ordering;

use vm_memory::GuestAddress;

use crate::PhysicalMemory;

use super::LinuxKnowledge;
use super::placement::Placement;
use crate::Registers;
use crate::memory::{AddressSpace, read_paged};

/// The kernel's memory, as one vCPU sees it at one moment.
pub struct KernelView<'a, M> {
    memory: &'a M,
    space: AddressSpace<'a, M>,
    placement: Placement,
    /// Where the image was linked to.
    image: &'a Range<u64>,
    /// Where all memory is mapped in a row, or 0.
    direct_map: u64,
}

impl LinuxKnowledge {
    /// The kernel's memory as a vCPU with `registers` sees it; `None` while it isn't known where the kernel is.
    pub fn view<'a, M: PhysicalMemory>(
        &'a self,
        memory: &'a M,
        registers: &Registers,
    ) -> Option<KernelView<'a, M>> {
        let placement = self.placement.get()?;
        Some(KernelView::new(self, placement, memory, registers))
    }
}

impl<'a, M: PhysicalMemory> KernelView<'a, M> {
    pub fn new(
        linux: &'a LinuxKnowledge,
        placement: Placement,
        memory: &'a M,
        registers: &Registers,
    ) -> Self {
        Self {
            memory,
            space: AddressSpace::new(memory, registers),
            placement,
            image: &linux.image,
            direct_map: linux.direct_map.load(Ordering::Relaxed),
        }
    }

    /// The physical address of kernel address `address`. The direct map and the image are linear, which
    /// saves the page walk; anything else is walked.
    pub fn translate(&self, address: u64) -> Option<GuestAddress> {
        if self.direct_map != 0 {
            let physical = GuestAddress(address.wrapping_sub(self.direct_map));
            if self.memory.contains(physical) {
                return Some(physical);
            }
        }
        let linked = address.wrapping_sub(self.placement.slide);
        if self.image.contains(&linked) {
            return Some(self.placement.physical(linked));
        }
        self.walk(address)
    }

    /// The physical address of kernel address `address`, by the page tables.
    pub fn walk(&self, address: u64) -> Option<GuestAddress> {
        self.space.translate(address).or_else(|| {
            // Under KPTI the user's page tables lack most of the kernel, and its own lie beside them.
            // Without KPTI the page there is another one: it has to have the kernel where it is.
            let kernel = self.space.kernel_half()?;
            let start = self.image.start;
            let found = kernel.translate(start.wrapping_add(self.placement.slide))?;
            (found == self.placement.physical(start)).then(|| kernel.translate(address))?
        })
    }

    /// Whether the page tables in force map kernel address `address`. Those that KPTI gives to user mode map only the
    /// little that every entry needs.
    pub fn is_mapped(&self, address: u64) -> bool {
        self.space.translate(address).is_some()
    }

    /// Fills `buffer` from kernel address `address`.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        read_paged(self.memory, address, buffer, |address| {
            self.translate(address)
        })
    }

    /// The pointer or other 64-bit number at kernel address `address`.
    pub fn u64(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// The `int` at kernel address `address`.
    pub fn i32(&self, address: u64) -> Option<i32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Some(i32::from_le_bytes(bytes))
    }

    /// The 32-bit variable of the image that was linked to `address`.
    pub fn variable_u32(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory
            .read_physical(self.placement.physical(address), &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// The 64-bit variable of the image that was linked to `address`.
    pub fn variable_u64(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory
            .read_physical(self.placement.physical(address), &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }
}
