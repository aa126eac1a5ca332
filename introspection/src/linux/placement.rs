//! Finds the running kernel, which KASLR moves in virtual and physical memory.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vm_memory::GuestAddress;

use crate::{PhysicalMemory, Registers};

use super::{KERNEL_MAP, KERNEL_MAP_LENGTH, LinuxKnowledge, MAX_BANNER};
use kvmprof_paging::AddressSpace;

/// The slide is a multiple of this number, in bytes (the lowest CONFIG_PHYSICAL_ALIGN on x86-64).
pub const ALIGNMENT: u64 = 2 << 20;
/// Maximum number of slides that one sample tries.
const MAX_TRIES: u64 = 64;
/// All addresses that the kernel can have.
const ALL: Range<u64> = KERNEL_MAP..KERNEL_MAP + KERNEL_MAP_LENGTH;
/// The vector of page faults.
const PAGE_FAULT: u8 = 14;
/// Bytes of a gate in long mode's interrupt descriptor table (SDM volume 3, section 7.14.1).
const GATE_LENGTH: u64 = 16;
/// A gate's present bit, in its sixth byte.
const GATE_PRESENT: u8 = 1 << 7;

/// The running kernel's location in virtual and physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The distance from its link-time address to its run-time address, in bytes.
    pub slide: u64,
    /// The wrapping sum of this number and a link-time address is the physical address.
    physical: u64,
}

impl Placement {
    /// The physical address of the variable with link-time address `address`.
    pub fn physical(&self, address: u64) -> GuestAddress {
        GuestAddress(address.wrapping_add(self.physical))
    }

    /// The link-time address of what is at physical address `address`, if it is in the image.
    pub fn linked(&self, address: GuestAddress) -> u64 {
        address.0.wrapping_sub(self.physical)
    }
}

/// A placement that any vCPU sets once for each run of the kernel.
#[derive(Debug, Default)]
pub struct PlacementCell {
    known: AtomicBool,
    slide: AtomicU64,
    physical: AtomicU64,
}

impl PlacementCell {
    /// The placement, once it is known.
    pub fn get(&self) -> Option<Placement> {
        self.known.load(Ordering::Acquire).then(|| Placement {
            slide: self.slide.load(Ordering::Relaxed),
            physical: self.physical.load(Ordering::Relaxed),
        })
    }

    /// Forgets the placement, because the kernel isn't there any more.
    pub fn forget(&self) {
        self.known.store(false, Ordering::Release);
    }

    /// Sets the placement. vCPUs that find it at the same time find the same one.
    pub fn set(&self, placement: Placement) {
        self.slide.store(placement.slide, Ordering::Relaxed);
        self.physical.store(placement.physical, Ordering::Relaxed);
        self.known.store(true, Ordering::Release);
    }
}

impl LinuxKnowledge {
    /// Finds the kernel. Its exception handlers give the slide, independent of the code that the vCPU runs. If their
    /// symbols aren't known, or before they are set up, this tries all slides with which a handler or the program counter
    /// is in the kernel.
    pub(super) fn find<M: PhysicalMemory>(
        &self,
        space: &AddressSpace<'_, M>,
        registers: &Registers,
    ) -> Option<Placement> {
        let by_gate = self.addresses.gates.iter().flatten().find_map(|gate| {
            let handler = handler(space, registers.idt_base, gate.vector)?;
            self.verify(space, handler.wrapping_sub(gate.handler))
        });
        by_gate.or_else(|| {
            let handler = handler(space, registers.idt_base, PAGE_FAULT);
            let inside = [Some(registers.rip), handler].into_iter().flatten();
            let mut inside = inside.filter(|address| ALL.contains(address));
            inside.find_map(|address| {
                let highest = address.checked_sub(self.image.start)?;
                let lowest = address.saturating_sub(self.image.end);
                let lowest = lowest.next_multiple_of(ALIGNMENT);
                let slides = (0..MAX_TRIES).map(|step| lowest + step * ALIGNMENT);
                let mut slides = slides.take_while(|slide| *slide <= highest);
                slides.find_map(|slide| self.verify(space, slide))
            })
        })
    }

    /// The placement with `slide`, if the kernel's banner is at the resulting address.
    pub(super) fn verify<M: PhysicalMemory>(
        &self,
        space: &AddressSpace<'_, M>,
        slide: u64,
    ) -> Option<Placement> {
        if slide >= KERNEL_MAP_LENGTH || !slide.is_multiple_of(ALIGNMENT) {
            return None;
        }
        let address = self.addresses.banner.checked_add(slide)?;
        let with = |space: &AddressSpace<'_, M>| {
            let mut bytes = [0; MAX_BANNER];
            let bytes = bytes.get_mut(..self.banner.len())?;
            space.read(address, bytes)?;
            let physical = space.translate(address)?;
            (*bytes == *self.banner).then(|| Placement {
                slide,
                physical: physical.0.wrapping_sub(self.addresses.banner),
            })
        };
        with(space).or_else(|| with(&space.kernel_half()?))
    }
}

/// The handler of `vector` in the interrupt descriptor table at `table`. `None` if there is none.
pub fn handler<M: PhysicalMemory>(
    space: &AddressSpace<'_, M>,
    table: u64,
    vector: u8,
) -> Option<u64> {
    let entry = space.read_array::<16>(table.checked_add(u64::from(vector) * GATE_LENGTH)?)?;
    // The offset is in three parts: bits 0-15, 16-31 and 32-63.
    let [a, b, _, _, _, flags, c, d, e, f, g, h, ..] = entry;
    (flags & GATE_PRESENT != 0).then(|| u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}
