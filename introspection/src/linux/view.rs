//! Reads the kernel's memory through the page tables that are active on the vCPU.

use std::sync::atomic::Ordering;

use vm_memory::GuestAddress;

use crate::{PhysicalMemory, Registers};

use super::LinuxKnowledge;
use super::placement::Placement;
use kvmprof_paging::{AddressSpace, CR0_PG, read_paged, read_u64};

/// The kernel's memory on one vCPU at one moment.
#[derive(Debug)]
pub struct KernelView<'a, M> {
    memory: &'a M,
    space: AddressSpace<'a, M>,
    placement: Placement,
    linux: &'a LinuxKnowledge,
    /// The start of the direct mapping of all memory, or 0.
    direct_map: u64,
}

impl LinuxKnowledge {
    /// The kernel's memory on a vCPU with `registers`; `None` while the slide is unknown.
    pub fn view<'a, M: PhysicalMemory>(
        &'a self,
        memory: &'a M,
        registers: &Registers,
    ) -> Option<KernelView<'a, M>> {
        let placement = self.placement.get()?;
        Some(KernelView::new(self, placement, memory, registers))
    }

    /// The kernel's memory in its image and the direct mapping, where all structures are that it allocates. That needs no page tables. `None` while
    /// the slide is unknown.
    pub fn direct_view<'a, M: PhysicalMemory>(
        &'a self,
        memory: &'a M,
    ) -> Option<KernelView<'a, M>> {
        // Page tables at 0, which lead nowhere.
        let nowhere_else = Registers {
            cr0: CR0_PG,
            ..Registers::default()
        };
        self.view(memory, &nowhere_else)
    }

    /// The kernel's memory by its own page tables. `None` if these are unknown, and while the slide is.
    pub fn own_view<'a, M: PhysicalMemory>(&'a self, memory: &'a M) -> Option<KernelView<'a, M>> {
        let registers = self.modules.kernel_registers(self.placement.get()?)?;
        self.view(memory, &registers)
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
            linux,
            direct_map: linux.direct_map.load(Ordering::Relaxed),
        }
    }

    /// The memory that the active page tables map.
    pub fn space(&self) -> &AddressSpace<'a, M> {
        &self.space
    }

    /// The guest's memory.
    pub fn memory(&self) -> &'a M {
        self.memory
    }

    /// The kernel.
    pub fn linux(&self) -> &'a LinuxKnowledge {
        self.linux
    }

    /// The kernel's placement.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The physical address of kernel address `address`. For the direct mapping and the image this needs no page walk.
    pub fn translate(&self, address: u64) -> Option<GuestAddress> {
        if self.direct_map != 0 {
            let physical = GuestAddress(address.wrapping_sub(self.direct_map));
            if self.memory.contains(physical) {
                return Some(physical);
            }
        }
        let linked = address.wrapping_sub(self.placement.slide);
        if self.linux.image.contains(&linked) {
            return Some(self.placement.physical(linked));
        }
        self.walk(address)
    }

    /// The physical address of kernel address `address`, by a page walk.
    pub fn walk(&self, address: u64) -> Option<GuestAddress> {
        self.space.translate(address).or_else(|| {
            // Under KPTI, the user's page tables lack most of the kernel, and the kernel's are next to them. Without
            // KPTI, that page is something else, so check that it maps the kernel.
            let kernel = self.space.kernel_half()?;
            let start = self.linux.image.start;
            let found = kernel.translate(start.wrapping_add(self.placement.slide))?;
            (found == self.placement.physical(start)).then(|| kernel.translate(address))?
        })
    }

    /// Whether the active page tables map kernel address `address`. KPTI's user half maps only the memory that the
    /// entry into the kernel needs.
    pub fn is_mapped(&self, address: u64) -> bool {
        self.space.translate(address).is_some()
    }

    /// The kernel address of the variable with link-time address `address`.
    pub fn linked(&self, address: u64) -> u64 {
        address.wrapping_add(self.placement.slide)
    }

    /// Fills `buffer` from kernel address `address`.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        read_paged(self.memory, address, buffer, |address| {
            self.translate(address)
        })
    }

    /// The `N` bytes at kernel address `address`.
    pub fn read_array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Some(bytes)
    }

    /// The pointer or other 64-bit number at kernel address `address`.
    pub fn u64(&self, address: u64) -> Option<u64> {
        self.read_array(address).map(u64::from_le_bytes)
    }

    /// The pointer to a structure of the kernel at `offset` in the structure at kernel address `structure`.
    pub fn pointer(&self, structure: u64, offset: u64) -> Option<u64> {
        kernel_pointer(self.u64(structure.wrapping_add(offset))?)
    }

    /// The `int` at kernel address `address`.
    pub fn i32(&self, address: u64) -> Option<i32> {
        self.read_array(address).map(i32::from_le_bytes)
    }

    /// The 32-bit variable with link-time address `address`.
    pub fn variable_u32(&self, address: u64) -> Option<u32> {
        let variable = self.memory.read_array(self.placement.physical(address));
        variable.map(u32::from_le_bytes)
    }

    /// The 64-bit variable with link-time address `address`.
    pub fn variable_u64(&self, address: u64) -> Option<u64> {
        read_u64(self.memory, self.placement.physical(address))
    }
}

/// `pointer`. `None` if it can't point to a structure of the kernel.
pub fn kernel_pointer(pointer: u64) -> Option<u64> {
    (pointer >> 63 == 1 && pointer.is_multiple_of(8)).then_some(pointer)
}
