//! Kinds of threads. The build script, which compiles a filter for each, includes this file.

/// Stands in a compiled filter for the number of the process that it will hold for. No process has this one (kernel: PID_MAX_LIMIT).
pub(crate) const OWN_PROCESS: u32 = 0x7fff_fffe;

/// A kind of thread of a program that runs a guest. See `docs/architecture.md` for what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The program's first.
    Main,
    /// A vCPU's.
    Vcpu,
    /// A vCPU's whose samples the host's kernel takes.
    VcpuWithBpf,
    /// The one that serves clients.
    Events,
    /// The one that reads the guest's kernel.
    Introspection,
    /// The one that reads the guest's programs.
    Binaries,
    /// The one that writes a recording.
    Recorder,
    /// The one that writes the console's output.
    Console,
    /// That of a disk's queue.
    Disk,
    /// That of a network device.
    Network,
    /// That of the socket device.
    Vsock,
    /// That of the memory balloon.
    Balloon,
    /// That of the entropy device.
    Entropy,
    /// That of a shared folder.
    Share,
    /// The one that makes ticks.
    Ticker,
    /// Those that end the process if nothing else does.
    End,
}

impl Thread {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Main,
        Self::Vcpu,
        Self::VcpuWithBpf,
        Self::Events,
        Self::Introspection,
        Self::Binaries,
        Self::Recorder,
        Self::Console,
        Self::Disk,
        Self::Network,
        Self::Vsock,
        Self::Balloon,
        Self::Entropy,
        Self::Share,
        Self::Ticker,
        Self::End,
    ];
}
