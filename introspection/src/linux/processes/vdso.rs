//! Reads the vdso, which is part of the kernel's image (`struct vdso_image`, `arch/x86/include/asm/vdso.h`).

use crate::PhysicalMemory;

use crate::linux::LinuxKnowledge;

/// Maximum size of the vdso, in bytes.
const MAX_LENGTH: u64 = 64 << 10;

impl LinuxKnowledge {
    /// The 64-bit vdso, an ELF file, from guest memory. `None` while the kernel's slide is unknown.
    pub fn vdso<M: PhysicalMemory>(&self, memory: &M) -> Option<Vec<u8>> {
        let placement = self.placement.get()?;
        // The structure begins with the address and the length of the vdso.
        let mut fields = [0; 16];
        memory.read_physical(placement.physical(self.addresses.vdso?), &mut fields)?;
        let [data, length] = [0, 8].map(|start| {
            let mut field = [0; 8];
            field.copy_from_slice(&fields[start..start + 8]);
            u64::from_le_bytes(field)
        });
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
