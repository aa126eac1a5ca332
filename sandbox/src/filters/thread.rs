//! Kinds of threads. The build script, which compiles a filter for each, includes this file.

/// Stands in a compiled filter for the id of the process that the filter will be used in. No process has this id (kernel: PID_MAX_LIMIT).
pub(crate) const OWN_PROCESS: u32 = 0x7fff_fffe;

/// A kind of thread of a program that runs a guest. See `docs/architecture.md` for what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The program's first thread.
    Main,
    /// The thread of a vCPU.
    Vcpu,
    /// The thread of a vCPU whose samples the host's kernel takes.
    VcpuWithBpf,
    /// The thread that serves clients.
    Events,
    /// The thread that reads the guest's kernel.
    Introspection,
    /// The thread that reads the guest's programs.
    Binaries,
    /// The thread that reads the guest's programs, if a folder of the host has the guest's files (`--sysroot`, `--root`).
    BinariesWithSysroot,
    /// The thread that writes a recording.
    Recorder,
    /// The thread that writes the console's output.
    Console,
    /// The thread of a disk's queue.
    Disk,
    /// The thread of a network device.
    Network,
    /// The thread of the socket device.
    Vsock,
    /// The thread of the memory balloon.
    Balloon,
    /// The thread of the entropy device.
    Entropy,
    /// The thread of a shared folder.
    Share,
    /// A thread that ends the process if nothing else does.
    End,
}

impl Thread {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Main,
        Self::Vcpu,
        Self::VcpuWithBpf,
        Self::Events,
        Self::Introspection,
        Self::Binaries,
        Self::BinariesWithSysroot,
        Self::Recorder,
        Self::Console,
        Self::Disk,
        Self::Network,
        Self::Vsock,
        Self::Balloon,
        Self::Entropy,
        Self::Share,
        Self::End,
    ];
}
