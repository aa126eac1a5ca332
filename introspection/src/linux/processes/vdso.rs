//! Finds and reads the vdso, which is part of the kernel's image (`struct vdso_image`, `arch/x86/include/asm/vdso.h`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::areas::RawArea;
use super::{Area, Backing};
use crate::PhysicalMemory;
use crate::bytes::u64_at;
use crate::linux::LinuxKnowledge;
use crate::linux::view::{KernelView, kernel_pointer};
use kvmprof_paging::PAGE;

/// Maximum size of the vdso, in bytes.
const MAX_LENGTH: u64 = 64 << 10;
/// Its name in `vdso_mapping` (`arch/x86/entry/vdso/vma.c`).
const NAME: [u8; 7] = *b"[vdso]\0";
/// The magic number of an ELF file, and its class of 64 bits.
const ELF_64: [u8; 5] = *b"\x7fELF\x02";
/// The vdsos of 32-bit processes are below.
const LOWEST: u64 = 1 << 32;

/// Where the 64-bit vdso is in a kernel without a symbol for it: its link-time address with its number of pages in the lower bits; 0 if unknown.
#[derive(Debug, Default)]
pub struct VdsoPlace(AtomicU64);

impl VdsoPlace {
    fn set(&self, linked: u64, length: u64) {
        self.0.store(linked | (length / PAGE), Ordering::Relaxed);
    }

    fn get(&self) -> Option<(u64, u64)> {
        let place = self.0.load(Ordering::Relaxed);
        (place != 0).then_some((place & !(PAGE - 1), (place & (PAGE - 1)) * PAGE))
    }
}

/// Whether the kernel calls an area without a file its vdso.
pub fn is_vdso<M: PhysicalMemory>(view: &KernelView<'_, M>, area: &RawArea) -> bool {
    let name = kernel_pointer(area.special).and_then(|special| view.u64(special));
    name.and_then(|name| view.read_array(name)) == Some(NAME)
}

/// Notes where the 64-bit vdso is by the running process's page tables, if one of its `areas` is it, in a kernel that has no symbol for it.
pub fn note_place<M: PhysicalMemory>(view: &KernelView<'_, M>, areas: &[Area]) {
    if view.linux().addresses.vdso.is_some() {
        return;
    }
    let is_it = |area: &&Area| area.backing == Backing::Vdso && area.begin >= LOWEST;
    if let Some(area) = areas.iter().find(is_it) {
        find(view, area);
    }
}

fn find<M: PhysicalMemory>(view: &KernelView<'_, M>, area: &Area) -> Option<()> {
    let (linux, length) = (view.linux(), area.end.checked_sub(area.begin)?);
    let physical = view.walk(area.begin)?;
    let linked = view.placement().linked(physical);
    let is_file = view.memory().read_array(physical)? == ELF_64;
    (is_file && linux.has_vdso_at(linked, length)).then(|| linux.vdso_place.set(linked, length))
}

impl LinuxKnowledge {
    /// The 64-bit vdso, an ELF file, from guest memory. `None` while the kernel's slide is unknown, or the vdso's place.
    pub fn vdso<M: PhysicalMemory>(&self, memory: &M) -> Option<Vec<u8>> {
        let placement = self.placement.get()?;
        let (linked, length) = match self.addresses.vdso {
            Some(image) => {
                // The structure begins with the address and the length of the vdso.
                let fields: [u8; 16] = memory.read_array(placement.physical(image))?;
                (
                    u64_at(&fields, 0)?.wrapping_sub(placement.slide),
                    u64_at(&fields, 8)?,
                )
            }
            None => self.vdso_place.get()?,
        };
        self.has_vdso_at(linked, length).then_some(())?;
        let mut contents = vec![0; usize::try_from(length).ok()?];
        memory.read_physical(placement.physical(linked), &mut contents)?;
        Some(contents)
    }

    /// Whether this many bytes at link-time address `linked` can be the vdso.
    fn has_vdso_at(&self, linked: u64, length: u64) -> bool {
        let end = linked.checked_add(length);
        let is_inside = end.is_some_and(|end| end <= self.image.end);
        length <= MAX_LENGTH && self.image.contains(&linked) && is_inside
    }
}
