//! Guests that a guest runs itself.

use std::sync::Arc;

use crate::HostKernel;

/// Checks whether a vCPU runs a nested guest just now. Then its registers are those of the nested guest.
#[derive(Debug)]
pub struct NestedGuest {
    kernel: Arc<HostKernel>,
    /// The address of `kvm_vcpu.arch.walk_mmu`, and the value that it has while a nested guest runs.
    pointer: u64,
    nested: u64,
}

impl NestedGuest {
    /// A check for the vCPU behind `descriptor` of process `pid`, if it is a vCPU of the guest at `kvm`.
    pub(crate) fn of_vcpu(
        kernel: &Arc<HostKernel>,
        pid: i32,
        kvm: u64,
        descriptor: i32,
    ) -> Option<Self> {
        let layout = kernel.vcpu_layout().ok()?;
        let vcpu = kernel.private_data(kernel.process(pid)?, descriptor)?;
        let guest = kernel.memory().pointer(vcpu, layout.kvm)?;
        (guest == kvm).then_some(())?;
        let nested = layout.nested?;
        Some(Self {
            kernel: Arc::clone(kernel),
            pointer: vcpu.checked_add(nested.walk_mmu)?,
            nested: vcpu.checked_add(nested.nested_mmu)?,
        })
    }

    /// Whether the vCPU runs a nested guest. This takes one read of the host kernel's memory, about 2 us. The answer holds while the vCPU stands
    /// still. A nested guest with shadow page tables, without nested paging, isn't detected.
    pub fn runs(&self) -> bool {
        self.kernel.memory().u64(self.pointer, 0) == Some(self.nested)
    }
}
