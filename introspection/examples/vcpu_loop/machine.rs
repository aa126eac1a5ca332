//! A machine with one vCPU and 64 MiB, for a 64-bit ELF image that starts in long mode.

use std::error::Error;
use std::io::Cursor;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_userspace_memory_region as Region};
use kvm_ioctls::{Kvm, VcpuFd};
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

pub type Failure = Box<dyn Error + Send + Sync>;

const MEMORY_BYTES: usize = 64 << 20;
/// Page tables, one for each level.
const TABLES: [u64; 3] = [0x1000, 0x2000, 0x3000];

/// The guest's memory with `image`, and its vCPU at the image's first instruction. Drop the vCPU first.
pub fn machine(image: &[u8]) -> Result<(GuestMemoryMmap<()>, VcpuFd), Failure> {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)])?;
    let entry = Elf::load(&memory, None, &mut Cursor::new(image), None)?.kernel_load;
    let kvm = Kvm::new()?;
    let vm = kvm.create_vm()?;
    vm.create_irq_chip()?;
    let region = Region {
        memory_size: MEMORY_BYTES as u64,
        userspace_addr: memory.get_host_address(GuestAddress(0))? as u64,
        ..Region::default()
    };
    // SAFETY: the memory stays mapped until the vCPU is gone.
    unsafe { vm.set_user_memory_region(region)? };
    let vcpu = vm.create_vcpu(0)?;
    vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
    // The first GiB at its own addresses, by pages of 2 MiB.
    let [root, directories, pages] = TABLES;
    memory.write_obj(directories | 3, GuestAddress(root))?;
    memory.write_obj(pages | 3, GuestAddress(directories))?;
    for page in 0..512 {
        memory.write_obj(page << 21 | 0x83, GuestAddress(pages + page * 8))?;
    }
    let mut sregs = vcpu.get_sregs()?;
    // Paging in long mode, and 64-bit code.
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8000_0011, root, 0x20, 0x500);
    (sregs.cs.base, sregs.cs.selector, sregs.cs.l) = (0, 0x10, 1);
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    // The vCPU's number, and how many there are.
    (regs.rip, regs.rdi, regs.rdx) = (entry.0, 0, 1);
    vcpu.set_regs(&regs)?;
    Ok((memory, vcpu))
}
