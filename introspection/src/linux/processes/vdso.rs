//! Reads the vdso, which is part of the kernel's image (`struct vdso_image`, `arch/x86/include/asm/vdso.h`).

use crate::PhysicalMemory;
use crate::bytes::u64_at;
use crate::linux::LinuxKnowledge;

/// Maximum size of the vdso, in bytes.
const MAX_LENGTH: u64 = 64 << 10;

impl LinuxKnowledge {
    /// The 64-bit vdso, an ELF file, from guest memory. `None` while the kernel's slide is unknown.
    pub fn vdso<M: PhysicalMemory>(&self, memory: &M) -> Option<Vec<u8>> {
        let placement = self.placement.get()?;
        // The structure begins with the address and the length of the vdso.
        let fields: [u8; 16] = memory.read_array(placement.physical(self.addresses.vdso?))?;
        let (data, length) = (u64_at(&fields, 0)?, u64_at(&fields, 8)?);
        let linked = data.wrapping_sub(placement.slide);
        let end = linked.checked_add(length)?;
        if length > MAX_LENGTH || !self.image.contains(&linked) || end > self.image.end {
            return None;
        }
        let mut contents = vec![0; usize::try_from(length).ok()?];
        memory.read_physical(placement.physical(linked), &mut contents)?;
        Some(contents)
    }
}
