//! Each kind of thread, taken over: what a fault in it could be used for is tried from inside its filter, in a process of its own.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::env;
use std::process::{self, Command, Output};
use std::ptr;
use std::thread;

use kvmprof_sandbox::filters::{STATUS, call_name, prepare};
use kvmprof_sandbox::{Mode, Thread, enter};

/// Names the kind of thread and the attempt, in a process that makes it.
const CHILD: &str = "KVMPROF_TEST_ATTEMPT";

/// The number of a process that there can't be (kernel: PID_MAX_LIMIT).
const NOBODY: u64 = 0x3fff_ffff;

/// What openat2(2) reads to open a file for writing, and make it (`struct open_how`): flags, mode, and how the path is followed.
static TO_WRITE: [u64; 3] = [(libc::O_WRONLY | libc::O_CREAT) as u64, 0o600, 0];

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// Nothing: a thread does its work and ends.
    Nothing,
    OpenToWrite,
    OpenToWriteByPath,
    OpenToWriteByStructure,
    Execute,
    InternetSocket,
    UnixSocket,
    Connect,
    Trace,
    ReadOthers,
    MapCode,
    MakeCode,
    Fork,
    Thread,
    Namespace,
    Mount,
    Module,
    Handler,
    Filter,
    KernelCode,
    KernelProgram,
    NewMachine,
    NewMemory,
    InjectInput,
    CountProcessor,
    CountOther,
    Kill,
    Interrupt,
    Abort,
    SignalItself,
}

impl Attempt {
    const ALL: [Self; 30] = [
        Self::Nothing,
        Self::OpenToWrite,
        Self::OpenToWriteByPath,
        Self::OpenToWriteByStructure,
        Self::Execute,
        Self::InternetSocket,
        Self::UnixSocket,
        Self::Connect,
        Self::Trace,
        Self::ReadOthers,
        Self::MapCode,
        Self::MakeCode,
        Self::Fork,
        Self::Thread,
        Self::Namespace,
        Self::Mount,
        Self::Module,
        Self::Handler,
        Self::Filter,
        Self::KernelCode,
        Self::KernelProgram,
        Self::NewMachine,
        Self::NewMemory,
        Self::InjectInput,
        Self::CountProcessor,
        Self::CountOther,
        Self::Kill,
        Self::Interrupt,
        Self::Abort,
        Self::SignalItself,
    ];

    fn call(self) -> i64 {
        match self {
            Self::Nothing => libc::SYS_getpid,
            Self::OpenToWrite => libc::SYS_openat,
            Self::OpenToWriteByPath => libc::SYS_open,
            Self::OpenToWriteByStructure => libc::SYS_openat2,
            Self::Execute => libc::SYS_execve,
            Self::InternetSocket | Self::UnixSocket => libc::SYS_socket,
            Self::Connect => libc::SYS_connect,
            Self::Trace => libc::SYS_ptrace,
            Self::ReadOthers => libc::SYS_process_vm_readv,
            Self::MapCode => libc::SYS_mmap,
            Self::MakeCode => libc::SYS_mprotect,
            Self::Fork => libc::SYS_fork,
            Self::Thread => libc::SYS_clone3,
            Self::Namespace => libc::SYS_unshare,
            Self::Mount => libc::SYS_mount,
            Self::Module => libc::SYS_init_module,
            Self::Handler => libc::SYS_rt_sigaction,
            Self::Filter => libc::SYS_seccomp,
            Self::KernelCode => libc::SYS_kexec_load,
            Self::KernelProgram => libc::SYS_bpf,
            Self::NewMachine | Self::NewMemory | Self::InjectInput => libc::SYS_ioctl,
            Self::CountProcessor | Self::CountOther => libc::SYS_perf_event_open,
            Self::Kill | Self::Interrupt | Self::SignalItself => libc::SYS_kill,
            Self::Abort => libc::SYS_tgkill,
        }
    }

    /// The numbers of a call that would do harm if it were let through.
    fn arguments(self) -> [u64; 4] {
        // Filters don't see paths; where one lets the call through, nothing is made.
        let path = c"/tmp/kvmprof-test-no-folder/escaped".as_ptr() as u64;
        match self {
            Self::OpenToWrite => {
                let flags = (libc::O_WRONLY | libc::O_CREAT) as u64;
                [0, path, flags, 0o600]
            }
            Self::OpenToWriteByPath => {
                let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u64;
                [path, flags, 0o600, 0]
            }
            Self::OpenToWriteByStructure => {
                let how = TO_WRITE.as_ptr() as u64;
                [0, path, how, size_of_val(&TO_WRITE) as u64]
            }
            Self::Execute => [c"/bin/true".as_ptr() as u64, 0, 0, 0],
            Self::InternetSocket => [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0],
            Self::UnixSocket => [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, 0],
            Self::MapCode => [
                0,
                4096,
                (libc::PROT_READ | libc::PROT_EXEC) as u64,
                (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64,
            ],
            Self::MakeCode => [0x1000, 4096, (libc::PROT_WRITE | libc::PROT_EXEC) as u64, 0],
            Self::Namespace => [libc::CLONE_NEWUSER as u64, 0, 0, 0],
            // KVM_CREATE_VM, KVM_SET_USER_MEMORY_REGION, TIOCSTI
            Self::NewMachine => [0, 0xae01, 0, 0],
            Self::NewMemory => [0, 0x4020_ae46, 0, 0],
            Self::InjectInput => [0, libc::TIOCSTI, 0, 0],
            // All tasks on the first processor; another task on any.
            Self::CountProcessor => [0, u64::MAX, 0, u64::MAX],
            Self::CountOther => [0, NOBODY, u64::MAX, u64::MAX],
            Self::Kill => [1, libc::SIGKILL as u64, 0, 0],
            Self::Interrupt => [NOBODY, libc::SIGINT as u64, 0, 0],
            Self::Abort => [NOBODY, NOBODY, libc::SIGABRT as u64, 0],
            // No signal, but as much of a call.
            Self::SignalItself => [process::id().into(), 0, 0, 0],
            _ => [0; 4],
        }
    }

    fn make(self) -> i64 {
        let [first, second, third, fourth] = self.arguments();
        // SAFETY: the test fails if a call gets through, and none of these changes memory of this process that is in use.
        unsafe {
            libc::syscall(
                self.call(),
                first,
                second,
                third,
                fourth,
                -1_i64,
                ptr::null::<u8>(),
            )
        }
    }

    /// Kinds of thread that need such a call.
    fn is_allowed(self, thread: Thread) -> bool {
        match self {
            Self::Nothing | Self::SignalItself => true,
            // Filters don't see its flags either; Landlock restricts which files are written to.
            Self::OpenToWriteByStructure => thread == Thread::BinariesWithSysroot,
            _ => false,
        }
    }
}

/// In the process of its own: makes the attempt on a thread of that kind.
fn act(thread: Thread, attempt: Attempt) {
    prepare(Mode::On, || {}).unwrap();
    let acting = thread::Builder::new().name("taken over".into());
    let acting = acting.spawn(move || {
        enter(thread);
        attempt.make()
    });
    acting.unwrap().join().unwrap();
}

fn child(thread: Thread, attempt: Attempt) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "each_kind_of_thread_is_contained"]);
    command.env(CHILD, format!("{thread:?} {attempt:?}"));
    command.output().unwrap()
}

#[test]
fn each_kind_of_thread_is_contained() {
    let pairs = || {
        let with = |thread: Thread| Attempt::ALL.map(|attempt| (thread, attempt));
        Thread::ALL.into_iter().flat_map(with)
    };
    if let Ok(name) = env::var(CHILD) {
        let named = |pair: &(Thread, Attempt)| format!("{:?} {:?}", pair.0, pair.1) == name;
        let (thread, attempt) = pairs().find(named).unwrap();
        return act(thread, attempt);
    }
    for (thread, attempt) in pairs() {
        let output = child(thread, attempt);
        let said = String::from_utf8_lossy(&output.stderr);
        let what = format!("{thread:?}, {attempt:?}: {:?} {said}", output.status);
        if attempt.is_allowed(thread) {
            assert!(output.status.success(), "{what}");
            continue;
        }
        assert_eq!(output.status.code(), Some(STATUS), "{what}");
        let number = attempt.call();
        let name = call_name(number).unwrap();
        let message = format!("The thread taken over made the system call {number} ({name}, ");
        assert!(said.contains(&message), "{what}");
    }
}

/// Names the kind of thread that panics, in a process of its own.
const PANICS: &str = "KVMPROF_TEST_PANICS";

/// A fault shows where it was, whichever thread has it: its filter allows what the report of a panic needs, with its lines too.
#[test]
fn a_panic_is_reported_from_inside_each_filter() {
    if let Ok(name) = env::var(PANICS) {
        let mut all = Thread::ALL.into_iter();
        let kind = all.find(|kind| format!("{kind:?}") == name).unwrap();
        prepare(Mode::On, || {}).unwrap();
        let panicking = thread::spawn(move || {
            enter(kind);
            panic!("on purpose");
        });
        assert!(panicking.join().is_err());
        return;
    }
    for kind in Thread::ALL {
        let mut command = Command::new(env::current_exe().unwrap());
        let test = "a_panic_is_reported_from_inside_each_filter";
        command.args(["--exact", "--nocapture", test]);
        command
            .env(PANICS, format!("{kind:?}"))
            .env("RUST_BACKTRACE", "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{kind:?}: {:?} {said}",
            output.status
        );
        for words in ["on purpose", "stack backtrace:", "a_panic_is_reported"] {
            assert!(said.contains(words), "{kind:?}: {said}");
        }
    }
}
