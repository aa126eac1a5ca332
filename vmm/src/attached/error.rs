//! What can go wrong when a guest of another program is attached to.

use std::io;
use std::path::PathBuf;

use kvmprof_attach::tracer::{CodeError, TraceError};
use kvmprof_attach::{AttachError, HostStacksError};
use kvmprof_introspection::IntrospectionError;

use crate::host_socket::HostSocketError;
use crate::kernel_capture::KernelCaptureError;
use crate::vm::VmError;

/// Why a guest can't be attached to, or not any longer.
#[derive(Debug, thiserror::Error)]
pub enum AttachedError {
    /// Its memory can't be read.
    #[error(transparent)]
    Memory(#[from] AttachError),
    /// Its vCPUs' threads can't be asked for registers.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// Its vCPUs can't be stopped.
    #[error("The vCPUs of process {pid} can't be looked at")]
    Trace {
        /// The VMM.
        pid: i32,
        /// What has happened.
        source: TraceError,
    },
    /// The host's kernel takes no samples of it.
    #[error("{0}; use --capture ptrace")]
    Capture(KernelCaptureError),
    /// The stacks of the host can't be had.
    #[error("{0}; or leave --host-stacks out")]
    HostStacks(HostStacksError),
    /// No vCPU has a thread.
    #[error(
        "No vCPU of the guest of process {0} has run yet, or their threads can't be found: try again later"
    )]
    NoVcpus(i32),
    /// The file that is said to be its kernel isn't one.
    #[error("Cannot read the guest's kernel from {path}", path = .path.display())]
    Kernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: IntrospectionError,
    },
    /// That file can't be read.
    #[error("Cannot read {path}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The socket couldn't be served.
    #[error(transparent)]
    Socket(#[from] HostSocketError),
    /// As for a guest of one's own.
    #[error(transparent)]
    Vm(#[from] VmError),
}
