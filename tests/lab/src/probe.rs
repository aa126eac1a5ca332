//! Checks whether this machine's /dev/kvm runs a guest.

use std::fmt::Display;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::LabError;

/// The only version since Linux 2.6.22 (Linux, `Documentation/virt/kvm/api.rst`, 4.1).
const API_VERSION: i32 = 12;

/// The address of the guest's code, and the size of the guest's memory, in bytes.
const CODE_AT: u64 = 0x1000;
const MEMORY_SIZE: usize = 0x4000;

/// Code in real mode, which adds and writes the sum to port 0x10.
const CODE: [u8; 7] = [
    0xb0, 0x28, // mov al, 40
    0x04, 0x02, // add al, 2
    0xe6, 0x10, // out 0x10, al
    0xf4, // hlt
];
const SUM: u8 = 42;
const PORT: u16 = 0x10;

/// Opens this machine's /dev/kvm and runs a few instructions of a guest, because a device that opens may still run nothing.
///
/// # Errors
/// [`LabError::NoKvm`], with the failed step and the reason.
pub fn probe_kvm() -> Result<(), LabError> {
    let kvm = Kvm::new().map_err(failed("/dev/kvm cannot be opened"))?;
    let version = kvm.get_api_version();
    if version != API_VERSION {
        return Err(LabError::NoKvm(format!(
            "/dev/kvm speaks version {version} of its interface, not {API_VERSION}"
        )));
    }
    let vm = kvm
        .create_vm()
        .map_err(failed("KVM cannot create a machine"))?;
    let memory = code_in_memory().map_err(failed("There is no memory for a guest"))?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY_SIZE as u64,
        userspace_addr: memory
            .get_host_address(GuestAddress(0))
            .map_err(failed("There is no memory for a guest"))?
            .expose_provenance() as u64,
    };
    // SAFETY: `memory` maps the whole region and lives until this function
    // ends; the guest runs nowhere else.
    unsafe { vm.set_user_memory_region(region) }.map_err(failed("KVM takes no memory"))?;
    let mut vcpu = vm
        .create_vcpu(0)
        .map_err(failed("KVM cannot create a vCPU"))?;
    set_entry(&vcpu).map_err(failed("KVM takes no registers"))?;
    match vcpu.run().map_err(failed("KVM cannot run a guest"))? {
        VcpuExit::IoOut(PORT, [SUM]) => {}
        other => return Err(unexpected("add", &other)),
    }
    match vcpu.run().map_err(failed("KVM cannot continue a guest"))? {
        VcpuExit::Hlt => Ok(()),
        other => Err(unexpected("halt", &other)),
    }
}

fn failed<E: Display>(step: &'static str) -> impl FnOnce(E) -> LabError {
    move |error| LabError::NoKvm(format!("{step}: {error}"))
}

fn unexpected(action: &str, exit: &VcpuExit) -> LabError {
    LabError::NoKvm(format!("KVM ran a guest that did not {action}: {exit:?}"))
}

fn code_in_memory() -> Result<GuestMemoryMmap<()>, Box<dyn std::error::Error>> {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_SIZE)])?;
    memory.write_slice(&CODE, GuestAddress(CODE_AT))?;
    Ok(memory)
}

fn set_entry(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs.base = 0;
    sregs.cs.selector = 0;
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    regs.rip = CODE_AT;
    // Bit 1 is always set (SDM volume 1, 3.4.3).
    regs.rflags = 2;
    vcpu.set_regs(&regs)
}
