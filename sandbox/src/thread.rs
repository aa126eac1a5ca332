//! Kinds of threads. The build script, which compiles a filter for each, includes this file.

/// Stands in a compiled filter for the id of the process that the filter will be used in. No process has this id (kernel: PID_MAX_LIMIT).
pub(crate) const OWN_PROCESS: u32 = 0x7fff_fffe;

/// Passes all kinds of threads to a macro: `NAME [TABLES] [RIGHTS]` each. The tables, of `build/tables.rs`, have the system calls that it may
/// make beyond those that all may make. The rights are those of a superuser (capabilities(7)) that it may need once a guest runs.
macro_rules! for_each_thread {
    ($action:ident) => {
        $action! {
            /// The program's first thread.
            Main [MAIN] [],
            /// The thread of a vCPU.
            Vcpu [VCPU] [PERFMON IPC_LOCK],
            /// The thread that serves clients.
            Events [EVENTS CLIENTS] [PERFMON IPC_LOCK],
            /// The thread that reads the guest's kernel.
            Introspection [] [],
            /// The thread that samples a vCPU of another program, as another process shows it.
            AttachedVcpu [LOOK CAPTURE] [],
            /// The thread that looks for the kernel of another program's guest, and watches it.
            AttachedKernel [LOOK] [],
            /// The thread that reads the guest's programs. Its files are open.
            Binaries [BINARIES] [],
            /// The thread that reads the guest's programs, if a folder of the host has the guest's files (`--sysroot`, `--root`).
            BinariesWithSysroot [BINARIES SYSROOT] [DAC_READ_SEARCH],
            /// The thread that writes a recording.
            Recorder [RECORDER] [],
            /// The thread that writes the console's output.
            Console [] [],
            /// The thread of a disk's queue.
            Disk [DISK] [],
            /// The thread of a network device.
            Network [CONNECTIONS] [],
            /// The thread of the socket device, which has clients.
            Vsock [CONNECTIONS CLIENTS] [],
            /// The thread of the entropy device.
            Entropy [] [],
            /// The thread of a shared folder.
            Share [SHARE] [],
            /// A thread that ends the process if nothing else does.
            End [END] [],
        }
    };
}
pub(crate) use for_each_thread;

macro_rules! declare {
    ($($(#[$doc:meta])* $name:ident [$($table:ident)*] [$($right:ident)*],)*) => {
        /// A kind of thread of a program that runs a guest. See `docs/architecture.md` for what each does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Thread {
            $($(#[$doc])* $name,)*
        }

        impl Thread {
            /// All kinds.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];
        }
    };
}
for_each_thread!(declare);
