//! Running Linux guests, built by hand, and what is known of them.

use std::ops::Deref;
use std::sync::Arc;

use kvmprof_introspection_fixtures::kernel::Kernel;
use kvmprof_introspection_fixtures::linux_guest;

use crate::{GuestKnowledge, Identity, LinuxKnowledge, Registers, VcpuIntrospector};

/// A running kernel, and the knowledge that its file gives.
#[derive(Debug)]
pub struct LinuxGuest {
    guest: linux_guest::LinuxGuest,
    pub knowledge: Arc<GuestKnowledge>,
}

impl Deref for LinuxGuest {
    type Target = linux_guest::LinuxGuest;

    fn deref(&self) -> &Self::Target {
        &self.guest
    }
}

impl LinuxGuest {
    /// A guest that runs `kernel` with 4 levels of page tables.
    pub fn new(kernel: Kernel) -> Self {
        Self::with_levels(kernel, 4)
    }

    /// A guest that runs `kernel` with `levels` levels of page tables, 4 or 5.
    pub fn with_levels(kernel: Kernel, levels: u32) -> Self {
        Self {
            guest: linux_guest::LinuxGuest::with_levels(kernel, levels),
            knowledge: Arc::new(GuestKnowledge::from_kernel_image(&kernel.file()).unwrap()),
        }
    }

    /// Knowledge of its kernel.
    pub fn linux(&self) -> &LinuxKnowledge {
        self.knowledge.linux().unwrap()
    }

    /// Reads the list of modules at once, which is otherwise the work of another thread.
    pub fn read_modules(&self) {
        self.linux().modules().read(self.linux(), &self.memory);
    }

    /// An introspector of vCPU `vcpu` without state.
    pub fn introspector(&self, vcpu: u16) -> VcpuIntrospector {
        VcpuIntrospector::new(self.knowledge.clone(), vcpu)
    }

    /// The result of a new introspector for `registers`.
    pub fn identify(&self, vcpu: u16, registers: &Registers) -> Identity {
        self.introspector(vcpu)
            .identify(&self.memory, registers, false, true)
    }
}
