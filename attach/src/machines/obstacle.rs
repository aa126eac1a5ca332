//! The reasons why a guest can't be attached to.

use crate::{HostKernel, Slots};

/// The first `KVM_X86_*_VM` whose memory is encrypted: SEV, then SEV-ES, SEV-SNP, TDX (`arch/x86/include/uapi/asm/kvm.h`).
const SEV: u8 = 2;

/// Why a guest can't be attached to. Its `Display` is for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The host's kernel can't be asked where guest memory is.
    #[error("{0}")]
    HostKernel(String),
    /// The VMM's memory may not be read.
    #[error("no permission to read its VMM's memory: {0}")]
    Permission(String),
    /// The VMM's main thread, through which its address space is found, has ended.
    #[error("its VMM's main thread has ended, or is just ending")]
    NoMainThread,
    /// Another process has the guest's memory: this one was only handed its descriptor.
    #[error(
        "the process only holds its descriptor; its memory is another one's, or has gone with that"
    )]
    Elsewhere,
    /// The guest's memory is encrypted.
    #[error("its memory is encrypted (SEV or TDX)")]
    Encrypted,
    /// The guest's memory is in a guest_memfd.
    #[error("its memory is private to it (guest_memfd)")]
    Private,
    /// The guest has no memory slot.
    #[error("it has no memory yet, or its memory slots can't be read")]
    NoMemory,
    /// The guest has no vCPU.
    #[error("it has no vCPU yet")]
    NoVcpu,
    /// No thread is known to run one of the guest's vCPUs.
    #[error("none of its vCPUs has run yet")]
    NoThread,
}

impl Obstacle {
    /// Whether the guest can be attached to once its VMM has finished to start it.
    pub fn is_of_start(&self) -> bool {
        matches!(self, Self::NoMemory | Self::NoVcpu | Self::NoThread)
    }
}

/// Why the memory of the guest at `kvm` can't be read, as far as the kernel knows.
pub fn obstacle_of_memory(kernel: &HostKernel, kvm: u64, slots: &Slots) -> Option<Obstacle> {
    obstacle(kernel.vm_type(kvm), slots.bytes(), slots.private_bytes())
}

/// The obstacle by the guest's type, if that is known, the size of its memory, and the size of the memory that its VMM can't read.
fn obstacle(kind: Option<u8>, bytes: u64, private_bytes: u64) -> Option<Obstacle> {
    if kind.is_some_and(|kind| kind >= SEV) {
        return Some(Obstacle::Encrypted);
    }
    match (bytes, private_bytes) {
        (0, 0) => Some(Obstacle::NoMemory),
        (0, _) => Some(Obstacle::Private),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kvm_bindings::{
        KVM_X86_DEFAULT_VM, KVM_X86_SEV_ES_VM, KVM_X86_SEV_VM, KVM_X86_SNP_VM,
        KVM_X86_SW_PROTECTED_VM, KVM_X86_TDX_VM,
    };

    use super::*;

    fn of(kind: u32, bytes: u64, private_bytes: u64) -> Option<Obstacle> {
        obstacle(Some(u8::try_from(kind).unwrap()), bytes, private_bytes)
    }

    #[test]
    fn encrypted_guests_are_known_by_their_type() {
        for kind in [
            KVM_X86_SEV_VM,
            KVM_X86_SEV_ES_VM,
            KVM_X86_SNP_VM,
            KVM_X86_TDX_VM,
        ] {
            for (bytes, private_bytes) in [(0, 0), (1 << 30, 0), (0, 1 << 30)] {
                assert_eq!(of(kind, bytes, private_bytes), Some(Obstacle::Encrypted));
            }
        }
        assert_eq!(of(KVM_X86_DEFAULT_VM, 1 << 30, 0), None);
        // Kernels before 6.8 have no types.
        assert_eq!(obstacle(None, 1 << 30, 0), None);
    }

    #[test]
    fn a_guest_with_only_private_memory_is_not_read() {
        let kind = KVM_X86_SW_PROTECTED_VM;
        assert_eq!(of(kind, 0, 1 << 30), Some(Obstacle::Private));
        assert_eq!(of(kind, 0, 0), Some(Obstacle::NoMemory));
        // The range that its VMM can read has to be enough.
        assert_eq!(of(kind, 4096, 1 << 30), None);
    }
}
