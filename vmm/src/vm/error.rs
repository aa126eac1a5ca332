//! Errors of a VM as a whole.

use std::io;
use std::path::PathBuf;

use kvmprof_attach::HostStacksError;

use kvmprof_introspection::{IntrospectionError, PidAtError};
use kvmprof_machine::MachineError;
use kvmprof_machine::console::ConsoleError;
use kvmprof_machine::disk::DiskError;
use kvmprof_machine::network::TapError;
use kvmprof_machine::share::ShareError;
use kvmprof_machine::unix_socket::SocketFileError;
use kvmprof_profiling::kernel_capture::KernelCaptureError;

/// The reason why a VM couldn't be started or couldn't continue.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The machine couldn't be built.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The kernel in a library doesn't say where it has to be.
    #[error("The kernel {name} can't be taken out of its library")]
    Library {
        /// Name of the kernel.
        name: String,
        /// What is wrong with the library.
        source: IntrospectionError,
    },
    /// The guest was reset, and couldn't be restarted.
    #[error("The guest cannot be restarted after its reset")]
    Restart(#[source] MachineError),
    /// A disk can't be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Files couldn't be restricted.
    #[error("The sandbox can't restrict files; --sandbox off runs the guest without")]
    Paths(#[from] kvmprof_sandbox::paths::PathsError),
    /// The socket couldn't be served.
    #[error(transparent)]
    Socket(#[from] SocketFileError),
    /// The console couldn't be opened.
    #[error(transparent)]
    Console(#[from] ConsoleError),
    /// The guest's image doesn't show where its processes are, and the guest is to be profiled.
    #[error("The guest can't be profiled; --pid-at none runs it without process ids")]
    Introspection(#[from] IntrospectionError),
    /// The place of the pid isn't in the guest's image.
    #[error("Invalid --pid-at: {0}")]
    PidAt(#[from] PidAtError),
    /// The recording's file can't be made.
    #[error("Cannot record to {path}", path = .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The host doesn't count the event that is to make the recording's ticks.
    #[error("The guest can't be sampled by {event}: {why}")]
    Event {
        /// The event's name.
        event: &'static str,
        /// The reason, and what to do.
        why: String,
    },
    /// The guest's tasks can't be looked at.
    #[error(
        "--tasks is for Linux guests whose kernel describes its tasks (BTF): record this one without it"
    )]
    Tasks,
    /// The folder with the guest's files can't be opened.
    #[error("Cannot open the guest's files in {path}", path = .path.display())]
    Sysroot {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file about the guest's kernel can't be read.
    #[error("Cannot read {path}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The host's kernel takes no samples.
    #[error("{0}; use --clock thread")]
    KernelClock(KernelCaptureError),
    /// The host's stacks can't be read.
    #[error("{0}; or leave --host-stacks out")]
    HostStacks(HostStacksError),
    /// A network device's other end can't be opened.
    #[error(transparent)]
    Network(#[from] TapError),
    /// A folder can't be shared with the guest.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The host refused a resource (thread, timer, descriptor).
    #[error("The host refused {what}")]
    Host {
        /// The resource.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The event loop failed.
    #[error("The event loop failed: {0}")]
    Events(event_manager::Error),
}

impl VmError {
    /// For `map_err`: the host refused `what`.
    pub(crate) fn host(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Host { what, source }
    }

    /// For `map_err` of a join: the thread panicked.
    pub(crate) fn panicked(thread: &str) -> Self {
        Self::host("to go on")(io::Error::other(format!("{thread} panicked")))
    }
}
