//! The host kernel's sampling of a guest of this process.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use kvmprof_attach::{HostStacks, Slot, Slots};
use kvmprof_introspection::GuestKnowledge;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use kvmprof_machine::{GuestMemory, Machine};
use kvmprof_profiling::kernel_capture::{
    self, CaptureHelper, CaptureOpener, KernelCaptureError, VcpuThreadId,
};

/// The host kernel's sampling of all vCPUs of a guest of this process.
#[derive(Debug)]
pub struct KernelSampling {
    pub(super) opener: Arc<CaptureOpener>,
    slots: Arc<Slots>,
    pub(super) vcpus: usize,
}

impl KernelSampling {
    /// Prepares the sampling of `machine`, whose guest `knowledge` describes, by `helper`, or a thread with this one's rights. With `host_stacks`, samples have the host's stacks, too.
    ///
    /// # Errors
    /// The host's kernel can't take samples.
    pub fn new(
        machine: &Machine,
        knowledge: &GuestKnowledge,
        host_stacks: Option<Arc<HostStacks>>,
        helper: Option<Arc<CaptureHelper>>,
    ) -> Result<Self, KernelCaptureError> {
        let here = || CaptureHelper::on_thread().map(Arc::new);
        let helper = helper.map_or_else(here, Ok);
        let helper = helper.map_err(KernelCaptureError::Helper)?;
        let opener = CaptureOpener::own(machine.vm.as_raw_fd(), host_stacks, helper)?;
        let sampling = Self {
            opener: Arc::new(opener),
            slots: Arc::new(slots(&machine.memory)),
            vcpus: machine.vcpus.len(),
        };
        let tid = rustix::thread::gettid().as_raw_pid();
        let vcpus = machine.vcpus.iter().map(|fd| VcpuThreadId {
            descriptor: fd.as_raw_fd(),
            tid,
        });
        let vcpus: Vec<VcpuThreadId> = vcpus.collect();
        kernel_capture::check(&sampling.opener, &sampling.slots, &vcpus, knowledge)?;
        Ok(sampling)
    }

    /// The slots of the guest's memory.
    pub fn slots(&self) -> Arc<Slots> {
        Arc::clone(&self.slots)
    }

    /// Whether samples have everything that recordings need of the guest that `knowledge` describes.
    pub fn serves_recordings(&self, knowledge: &GuestKnowledge) -> bool {
        // Other guests than Linux have no mappings, and are sampled only where the privilege level is known.
        self.opener.form().knows_privilege() || !knowledge.may_be_linux()
    }
}

/// The slots of guest memory in this process.
fn slots(memory: &GuestMemory) -> Slots {
    let slot = |region: &vm_memory::GuestRegionMmap<()>| Slot {
        address: region.start_addr(),
        bytes: region.len(),
        host_address: region.as_ptr() as u64,
        is_read_only: false,
        logs_writes: false,
        backing: kvmprof_attach::Backing::default(),
    };
    let slots: Vec<Slot> = memory.iter().map(slot).collect();
    // Regions of one memory don't overlap.
    Slots::new(&slots).unwrap_or_default()
}
