//! Why the host's kernel can't be read for its guests.

use std::io;

use kvmprof_introspection::{IntrospectionError, Missing};

use crate::KernelMemoryError;

/// Why the host's kernel can't be read for its guests.
#[derive(Debug, thiserror::Error)]
pub enum HostKernelError {
    /// The kernel's memory can't be read.
    #[error(transparent)]
    Memory(#[from] KernelMemoryError),
    /// The kernel's BTF can't be read.
    #[error(
        "Cannot read {path}, the types of the host's kernel: {error}; it needs CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoTypes {
        /// The file.
        path: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The kernel's BTF is invalid.
    #[error("The types of the host's kernel in /sys/kernel/btf are damaged: {0}")]
    Types(#[from] IntrospectionError),
    /// The kernel has no KVM.
    #[error(
        "The host's kernel has no KVM: /sys/kernel/btf has no type of KVM (if KVM is a module, load kvm)"
    )]
    NoKvm,
    /// The kernel's types lack something that this version needs.
    #[error(
        "The types of the host's kernel don't have {0}: this version of kvmprof doesn't support this kernel"
    )]
    Missing(#[from] Missing),
    /// This process wasn't found by the offsets of the BTF.
    #[error("The memory of the host's kernel doesn't match its types in /sys/kernel/btf: {0}")]
    Implausible(&'static str),
}
