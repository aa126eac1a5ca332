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

/// A thread does its work, and makes as much of a call to signal as it may.
const ALLOWED: [&str; 2] = ["nothing", "signal itself"];

/// What is tried, by a name: a call, and numbers for it that would do harm if it were let through. Other calls, and what else there is of files,
/// are tried by `names.rs`.
fn attempts() -> [(&'static str, i64, [u64; 4]); 26] {
    let code = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let written = (libc::PROT_WRITE | libc::PROT_EXEC) as u64;
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let program = c"/bin/true".as_ptr() as u64;
    let [inet, unix] = [libc::AF_INET, libc::AF_UNIX].map(|it| u64::from(it.unsigned_abs()));
    let stream = libc::SOCK_STREAM as u64;
    let user = libc::CLONE_NEWUSER as u64;
    let [kill, interrupt, abort] =
        [libc::SIGKILL, libc::SIGINT, libc::SIGABRT].map(|it| u64::from(it.unsigned_abs()));
    let own = u64::from(process::id());
    let none = [0; 4];
    [
        ("nothing", libc::SYS_getpid, none),
        ("execute", libc::SYS_execve, [program, 0, 0, 0]),
        ("internet", libc::SYS_socket, [inet, stream, 0, 0]),
        ("socket", libc::SYS_socket, [unix, stream, 0, 0]),
        ("connect", libc::SYS_connect, none),
        ("trace", libc::SYS_ptrace, none),
        ("read others", libc::SYS_process_vm_readv, none),
        ("map code", libc::SYS_mmap, [0, 4096, code, anonymous]),
        ("make code", libc::SYS_mprotect, [4096, 4096, written, 0]),
        ("fork", libc::SYS_fork, none),
        ("thread", libc::SYS_clone3, none),
        ("namespace", libc::SYS_unshare, [user, 0, 0, 0]),
        ("mount", libc::SYS_mount, none),
        ("module", libc::SYS_init_module, none),
        ("handler", libc::SYS_rt_sigaction, none),
        ("filter", libc::SYS_seccomp, none),
        ("kernel code", libc::SYS_kexec_load, none),
        // KVM_CREATE_VM, KVM_SET_USER_MEMORY_REGION
        ("machine", libc::SYS_ioctl, [0, 0xae01, 0, 0]),
        ("memory", libc::SYS_ioctl, [0, 0x4020_ae46, 0, 0]),
        ("type", libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0]),
        // All tasks on the first processor; another task on any.
        ("count all", COUNT, [0, u64::MAX, 0, u64::MAX]),
        ("count another", COUNT, [0, NOBODY, u64::MAX, u64::MAX]),
        ("kill", libc::SYS_kill, [1, kill, 0, 0]),
        ("interrupt", libc::SYS_kill, [NOBODY, interrupt, 0, 0]),
        ("abort", libc::SYS_tgkill, [NOBODY, NOBODY, abort, 0]),
        // No signal, but as much of a call.
        ("signal itself", libc::SYS_kill, [own, 0, 0, 0]),
    ]
}

const COUNT: i64 = libc::SYS_perf_event_open;

/// In the process of its own: makes the attempt on a thread of that kind.
fn act(kind: Thread, call: i64, [first, second, third, fourth]: [u64; 4]) {
    prepare(Mode::On, || {}).unwrap();
    let acting = thread::Builder::new().name("taken over".into());
    let acting = acting.spawn(move || {
        enter(kind);
        let nothing = ptr::null::<u8>();
        // SAFETY: the test fails if a call gets through, and none of these changes memory of this process that is in use.
        unsafe { libc::syscall(call, first, second, third, fourth, -1_i64, nothing) }
    });
    acting.unwrap().join().unwrap();
}

/// Runs this test again with a variable that says what it has to do.
fn child(test: &str, variable: &str, value: &str) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", test]);
    command.env(variable, value).env("RUST_BACKTRACE", "1");
    command.output().unwrap()
}

#[test]
fn each_kind_of_thread_is_contained() {
    for kind in Thread::ALL {
        for (what, call, arguments) in attempts() {
            let name = format!("{kind:?} {what}");
            match env::var(CHILD) {
                Ok(asked) if asked == name => return act(kind, call, arguments),
                Ok(_) => continue,
                Err(_) => {}
            }
            let output = child("each_kind_of_thread_is_contained", CHILD, &name);
            let said = String::from_utf8_lossy(&output.stderr);
            let ended = format!("{name}: {:?} {said}", output.status);
            if ALLOWED.contains(&what) {
                assert!(output.status.success(), "{ended}");
                continue;
            }
            assert_eq!(output.status.code(), Some(STATUS), "{ended}");
            let known = call_name(call).unwrap();
            let message = format!("The thread taken over made the system call {call} ({known}, ");
            assert!(said.contains(&message), "{ended}");
        }
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
        let test = "a_panic_is_reported_from_inside_each_filter";
        let output = child(test, PANICS, &format!("{kind:?}"));
        let said = String::from_utf8_lossy(&output.stderr);
        let status = output.status;
        assert!(status.success(), "{kind:?}: {status:?} {said}");
        for words in ["on purpose", "stack backtrace:", "a_panic_is_reported"] {
            assert!(said.contains(words), "{kind:?}: {said}");
        }
    }
}
