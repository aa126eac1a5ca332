//! `cargo lab probe`: does this machine's /dev/kvm run a guest?

use anyhow::{Context, Result, bail};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// The only version there has been since Linux 2.6.22
/// (Linux, `Documentation/virt/kvm/api.rst`, 4.1).
const API_VERSION: i32 = 12;

/// Where the guest's code lies, in bytes, and how much memory there is.
const CODE_AT: u64 = 0x1000;
const MEMORY_SIZE: usize = 0x4000;

/// Real mode: adds, and tells the sum to port 0x10.
const CODE: [u8; 7] = [
    0xb0, 0x28, // mov al, 40
    0x04, 0x02, // add al, 2
    0xe6, 0x10, // out 0x10, al
    0xf4, // hlt
];
const SUM: u8 = 42;
const PORT: u16 = 0x10;

/// Opens /dev/kvm and runs a few instructions of a guest.
pub(crate) fn run() -> Result<()> {
    let kvm = Kvm::new().context("/dev/kvm cannot be opened")?;
    let version = kvm.get_api_version();
    if version != API_VERSION {
        bail!("/dev/kvm speaks version {version} of its interface, not {API_VERSION}");
    }
    let vm = kvm.create_vm().context("KVM cannot create a machine")?;
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_SIZE)])
        .context("No memory for a guest")?;
    memory.write_slice(&CODE, GuestAddress(CODE_AT))?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY_SIZE as u64,
        userspace_addr: memory.get_host_address(GuestAddress(0))? as u64,
    };
    // SAFETY: `memory` maps the whole region and lives until this function
    // ends; the guest runs nowhere else.
    unsafe { vm.set_user_memory_region(region) }.context("KVM takes no memory")?;
    let mut vcpu = vm.create_vcpu(0).context("KVM cannot create a vCPU")?;
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs.base = 0;
    sregs.cs.selector = 0;
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    regs.rip = CODE_AT;
    // Bit 1 is always set (SDM volume 1, 3.4.3).
    regs.rflags = 2;
    vcpu.set_regs(&regs)?;
    match vcpu.run().context("KVM cannot run a guest")? {
        VcpuExit::IoOut(PORT, [SUM]) => {}
        other => bail!("KVM ran a guest that did something else: {other:?}"),
    }
    match vcpu.run().context("KVM cannot continue a guest")? {
        VcpuExit::Hlt => Ok(()),
        other => bail!("KVM ran a guest that did not halt: {other:?}"),
    }
}
