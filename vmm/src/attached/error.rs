//! Errors of attaching to a guest of another program.

use std::path::PathBuf;

use kvmprof_attach::tracer::{CodeError, TraceError};
use kvmprof_attach::{AttachError, HostStacksError};
use kvmprof_introspection::IntrospectionError;

use crate::vm::VmError;
use kvmprof_machine::unix_socket::SocketFileError;
use kvmprof_profiling::kernel_capture::KernelCaptureError;

/// Why kvmprof can't attach to a guest, or can't stay attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachedError {
    /// The guest's memory can't be read.
    #[error(transparent)]
    Memory(#[from] AttachError),
    /// The threads of the guest's vCPUs can't be asked for registers.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The guest's vCPUs can't be stopped.
    #[error("The vCPUs of process {pid} can't be looked at")]
    Trace {
        /// The VMM.
        pid: i32,
        /// The error.
        source: TraceError,
    },
    /// The host's kernel can't take samples of the guest.
    #[error("{0}; use --capture ptrace")]
    Capture(KernelCaptureError),
    /// The host's stacks can't be read.
    #[error("{0}; or leave --host-stacks out")]
    HostStacks(HostStacksError),
    /// No vCPU has a thread.
    #[error(
        "No vCPU of the guest of process {0} has run yet, or their threads can't be found: try again later"
    )]
    NoVcpus(i32),
    /// The file of `--kernel` isn't a kernel.
    #[error("Cannot read the guest's kernel from {path}", path = .path.display())]
    Kernel {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        source: IntrospectionError,
    },
    /// A file of the kernel's build can't be used.
    #[error(transparent)]
    Files(IntrospectionError),
    /// The file of `--console` can't be read.
    #[error("Cannot read {path}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file of `--console` can't be watched.
    #[error(
        "{path} is no regular file: have the VMM write its guest's console to a file",
        path = .0.display()
    )]
    Console(PathBuf),
    /// The socket couldn't be served.
    #[error(transparent)]
    Socket(#[from] SocketFileError),
    /// An error that guests of kvmprof itself can have, too.
    #[error(transparent)]
    Vm(#[from] VmError),
}
