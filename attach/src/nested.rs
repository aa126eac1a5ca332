//! Guests that a guest runs itself.

use std::sync::Arc;

use crate::HostKernel;

/// Tells whether a vCPU runs a guest of the guest's own just now: then its registers are that one's.
#[derive(Debug)]
pub struct NestedGuest {
    kernel: Arc<HostKernel>,
    /// The address of `kvm_vcpu.arch.walk_mmu`, and where that leads to then.
    pointer: u64,
    nested: u64,
}

impl NestedGuest {
    /// For the vCPU behind `descriptor` of process `pid`, if it is one of the guest at `kvm`.
    pub(crate) fn of_vcpu(
        kernel: &Arc<HostKernel>,
        pid: i32,
        kvm: u64,
        descriptor: i32,
    ) -> Option<Self> {
        let layout = kernel.vcpu_layout().ok()?;
        let vcpu = kernel.private_data(kernel.process(pid)?, descriptor)?;
        let guest = kernel
            .memory()
            .read_pointer(vcpu.checked_add(layout.kvm)?)?;
        (guest == kvm).then_some(())?;
        let nested = layout.nested?;
        Some(Self {
            kernel: Arc::clone(kernel),
            pointer: vcpu.checked_add(nested.walk_mmu)?,
            nested: vcpu.checked_add(nested.nested_mmu)?,
        })
    }

    /// Whether it does: one read of the host kernel's memory, some 2 us. It stays so while the vCPU stands still. Not seen is a guest for which
    /// the guest makes shadow page tables, without nested paging.
    pub fn runs(&self) -> bool {
        self.kernel.memory().read_u64(self.pointer) == Some(self.nested)
    }
}
