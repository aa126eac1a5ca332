//! vCPU threads: they run the guest, and look at it when a tick is due.

mod access;
mod batches;
mod kernel_clock;
mod kernel_sampler;
mod kernel_sampling;
mod own_vcpu;
mod record_contents;
mod restart;
mod sampler;
mod suspension;
mod thread;

pub(crate) use access::{Presence, StoppedState, Unseen, VcpuAccess};
pub(crate) use kernel_clock::KernelClock;
pub use kernel_sampling::KernelSampling;
pub use restart::{OnReset, Restart};
pub(crate) use sampler::Sampler;
pub use thread::{Ending, VcpuCommon, VcpuThread};
