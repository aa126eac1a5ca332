//! Errors of samples that the host's kernel takes.

use std::io;
use std::sync::Arc;

use kvmprof_attach::sampling::SamplingError;

use crate::perf_event;

/// Why the host's kernel takes no samples.
#[derive(Debug, thiserror::Error)]
pub enum KernelCaptureError {
    /// The kernel refuses the program, or doesn't know the vCPU.
    #[error(transparent)]
    Program(#[from] SamplingError),
    /// The kernel's memory can't be read, or this version doesn't support the kernel.
    #[error(transparent)]
    Host(Arc<SamplingError>),
    /// The kernel refuses the event of the clock or of its ring.
    #[error("The host's kernel takes samples by perf's clock on the vCPUs' threads, but {}", perf_event::why_not(.0))]
    Event(io::Error),
    /// There is no memory for the ring of samples.
    #[error(
        "Cannot map the ring for samples: {0}; give kvmprof CAP_IPC_LOCK, or set the host's sysctl kernel.perf_event_mlock_kb \
         to more"
    )]
    Ring(io::Error),
    /// The process that has the rights for it refuses, or is gone.
    #[error("The process kvmprof-bpf, which loads the program for the clock: {0}")]
    Helper(io::Error),
    /// The process that traces the VMM has said why not, or is gone.
    #[error("{0}")]
    Tracer(io::Error),
    /// User mode and kernel mode can't be distinguished.
    #[error("On this host's processor the host's kernel tells the mode only of Linux guests")]
    NoPrivilege,
}
