//! Reasons why the host's kernel can't take samples.

use std::io;

use crate::kernel_memory::{KernelMemoryError, why_refused};
use crate::{HostKernelError, kernel_memory::bpf::LoadError};

/// Why the host's kernel can't take samples.
#[derive(Debug, thiserror::Error)]
pub enum SamplingError {
    /// The types of the host's kernel don't say where registers are.
    #[error("{0}")]
    Layout(String),
    /// The host's kernel can't be asked about the guest.
    #[error(transparent)]
    Host(#[from] HostKernelError),
    /// eBPF isn't allowed.
    #[error(transparent)]
    Bpf(#[from] KernelMemoryError),
    /// The verifier doesn't accept the program.
    #[error("The host's kernel refuses the eBPF program that takes samples ({0})")]
    Verifier(String),
    /// Exits can't be sampled.
    #[error("Exits of the guest can't be sampled on this host")]
    NoExits,
    /// Faults of guest memory can't be sampled.
    #[error("Faults of the guest's memory can't be sampled on this host")]
    NoFaults,
    /// The VMM has closed the vCPU.
    #[error("A vCPU of the guest has gone")]
    NoVcpu,
    /// The host's kernel has no such guest of this process.
    #[error("The host's kernel doesn't know the guest of this process")]
    NoGuest,
}

/// The error for a failed call of bpf(2).
pub fn refused(error: io::Error) -> SamplingError {
    why_refused(error).into()
}

impl From<LoadError> for SamplingError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Verifier(said) => Self::Verifier(said),
            LoadError::System(error) => refused(error),
        }
    }
}
