//! Chooses what takes the samples of a guest, and how.

use std::sync::Arc;

use kvm_ioctls::{Cap, Kvm};
use kvmprof_attach::HostStacks;
use kvmprof_introspection::GuestKnowledge;

use super::VmError;
use crate::vcpu::KernelSampling;
use kvmprof_machine::Machine;
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_profiling::kernel_capture::CaptureHelper;
use kvmprof_profiling::profiler::ClockPlan;
use kvmprof_profiling::sampling::RegisterSource;

/// The unwinder of the host's stacks, if the configuration asks for them. It reads this program's own file.
pub(super) fn host_stacks(profiling: &ProfilingConfig) -> Result<Option<Arc<HostStacks>>, VmError> {
    let is_wanted = profiling.host_stacks && profiling.source == ClockSource::Kernel;
    is_wanted
        .then(|| HostStacks::read(std::process::id().cast_signed()).map(Arc::new))
        .transpose()
        .map_err(VmError::HostStacks)
}

/// The host kernel's sampling, if it takes the samples of `machine`, by `helper` if there is one.
pub(super) fn kernel_sampling(
    profiling: &ProfilingConfig,
    machine: &Machine,
    knowledge: &GuestKnowledge,
    host_stacks: Option<Arc<HostStacks>>,
    helper: Option<Arc<CaptureHelper>>,
) -> Result<Option<Arc<KernelSampling>>, VmError> {
    (profiling.source == ClockSource::Kernel)
        .then(|| KernelSampling::new(machine, knowledge, host_stacks, helper).map(Arc::new))
        .transpose()
        .map_err(VmError::KernelClock)
}

/// The clock that makes the ticks. If the host kernel's samples lack something that recordings need, another clock makes the ticks for
/// recordings.
pub(super) fn clock_plan(
    profiling: Arc<ProfilingConfig>,
    kvm: &Kvm,
    sampling: Option<&KernelSampling>,
    knowledge: &GuestKnowledge,
) -> ClockPlan {
    let source = profiling.source;
    let fallback = match source {
        ClockSource::Kernel => ClockSource::Thread,
        source => source,
    };
    let serves_recordings = sampling.is_some_and(|sampling| sampling.serves_recordings(knowledge));
    ClockPlan {
        profiling,
        fallback,
        of_recordings: if serves_recordings { source } else { fallback },
        registers: register_source(kvm),
    }
}

/// The source of the registers: the run page if KVM has one.
fn register_source(kvm: &Kvm) -> RegisterSource {
    if kvm.check_extension(Cap::SyncRegs) {
        RegisterSource::RunPage
    } else {
        RegisterSource::Ioctls
    }
}
