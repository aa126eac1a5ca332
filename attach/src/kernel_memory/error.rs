//! Why the host kernel's memory can't be read.

use std::io;

use crate::capabilities;

/// Why the host kernel's memory can't be read.
#[derive(Debug, thiserror::Error)]
pub enum KernelMemoryError {
    /// The kernel was built without eBPF.
    #[error("The host's kernel has no eBPF (bpf(2)): it needs CONFIG_BPF_SYSCALL=y")]
    NoBpf,
    /// This process may not use eBPF.
    #[error(
        "The host's kernel refuses eBPF: {} (CAP_SYS_ADMIN has both)",
        capabilities::lacks(.0)
    )]
    MissingCapabilities(Vec<&'static str>),
    /// This process has the capabilities, but something else forbids eBPF.
    #[error(
        "The host's kernel refuses eBPF although kvmprof has CAP_BPF and CAP_PERFMON: run it outside of containers and \
         user namespaces, and see if a seccomp filter or a security module forbids bpf(2)"
    )]
    Forbidden,
    /// The program isn't accepted.
    #[error(
        "The host's kernel lets no eBPF program read its memory ({0}): it needs Linux 5.15 or newer without \
         lockdown=confidentiality"
    )]
    Refused(io::Error),
    /// Another call failed.
    #[error("Cannot {what}: {error}")]
    Failed {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}
