//! Why the host's kernel can't be asked about its guests.

use std::io;

use kvmprof_introspection::IntrospectionError;

use crate::KernelMemoryError;

/// Why the host's kernel can't be asked about its guests.
#[derive(Debug, thiserror::Error)]
pub enum HostKernelError {
    /// Its memory can't be read.
    #[error(transparent)]
    Memory(#[from] KernelMemoryError),
    /// It doesn't tell its types.
    #[error(
        "Cannot read {path}, the types of the host's kernel: {error}; it needs CONFIG_DEBUG_INFO_BTF=y"
    )]
    NoTypes {
        /// The file.
        path: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// Its types don't parse.
    #[error("The types of the host's kernel in /sys/kernel/btf are damaged: {0}")]
    Types(#[from] IntrospectionError),
    /// It has no KVM.
    #[error(
        "The host's kernel has no KVM: no type of it is in /sys/kernel/btf (with KVM as a module: load kvm)"
    )]
    NoKvm,
    /// A member isn't where this version looks for it.
    #[error(
        "The host's kernel keeps {structure}.{member} elsewhere: this version of kvmprof doesn't know such a kernel"
    )]
    MissingMember {
        /// The structure.
        structure: &'static str,
        /// The member.
        member: &'static str,
    },
    /// This process wasn't found where its types say.
    #[error("The memory of the host's kernel doesn't fit its types in /sys/kernel/btf: {0}")]
    Implausible(&'static str),
}
