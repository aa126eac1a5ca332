//! A guest's kvmprof, one of whose threads does what it never does by itself, as if a guest had found a fault and taken the thread over.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::thread;

use kvmprof_sandbox::filters::STATUS;
use kvmprof_tests::{Boot, Guest, StoppedThread, kvmprof, not_run, on_kvm, until};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::sandbox::{Fields, contained_threads};
use super::sandbox_folders::serve;

/// Kinds of threads that a recorded guest has, with the main thread at the end: its end is visible after that of the others.
const THREADS: [&str; 5] = ["vcpu 0", "events", "recorder", "entropy", "kvmprof"];
/// The thread that ends the process as a last resort. It needs no file.
const FORCED_END: &str = "forced end";

/// A file that kvmprof doesn't use.
fn secret() -> (TempDir, CString) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    fs::write(&path, "secret").unwrap();
    (folder, c_path(&path))
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// A guest that is recorded into a folder, once its threads have their filters.
fn start(sandbox: &str) -> (Guest, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let options = ["--sandbox", sandbox, "--record"].map(Path::new);
    let guest = Guest::start(Boot::Demo, options.into_iter().chain([recording.as_path()]));
    contained_threads(guest.pid(), &THREADS);
    (guest, folder)
}

/// Whether this host's kernel has Landlock.
pub(super) fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    let none = ptr::null::<libc::c_void>();
    // SAFETY: the call gets no attributes, and answers with a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) > 0 }
}

/// Stops all threads, the main thread at the end: its end is visible after that of the others. KVM's own worker, which is one of them, is never in
/// user mode.
pub(super) fn stop_all(pid: u32, all: &BTreeMap<String, Fields>) -> Vec<(&str, StoppedThread)> {
    let (first, others): (Vec<&String>, _) = all.keys().partition(|name| *name == "kvmprof");
    let others = others.into_iter().filter(|name| !name.starts_with("kvm-"));
    let names = others.chain(first);
    names
        .map(|name| (name.as_str(), StoppedThread::stop(pid, name)))
        .collect()
}

/// A kvmprof that is killed at the end.
struct KilledKvmprof(Child);

impl Drop for KilledKvmprof {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest with a console, a folder and a recording, all in `folder`: with every thread that exists before files are restricted.
fn start_with_early_threads(folder: &Path) -> KilledKvmprof {
    let kernel = folder.join("kernel");
    fs::write(&kernel, Boot::Demo.image().elf()).unwrap();
    let socket = folder.join("files");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || serve(&listener, |_| true));
    let mut command = Command::new(kvmprof());
    command.args([
        "run",
        "--memory",
        "64M",
        "--cmdline",
        "",
        "--console",
        "hvc",
    ]);
    command.arg("--kernel").arg(kernel);
    command.arg("--record").arg(folder.join("recording"));
    let share = format!("socket={},tag=files", socket.display());
    command.args(["--share", &share]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    KilledKvmprof(command.spawn().unwrap())
}

/// Also of threads that are started before files are restricted: Landlock applies to a thread and its later children.
#[test]
fn a_thread_opens_no_file_but_those_that_the_guest_needs() {
    on_kvm(|| {
        if !has_landlock() {
            not_run("this host's kernel has no Landlock");
            return;
        }
        const EARLY: [&str; 4] = ["console", FORCED_END, "panic guard", "share limits"];
        let of_kernel = c"/proc/sys/vm/overcommit_memory";
        let (_secret, secret) = secret();
        let folder = tempfile::tempdir().unwrap();
        let guest = start_with_early_threads(folder.path());
        let pid = guest.0.id();
        let all = contained_threads(pid, &[&EARLY[..], &THREADS].concat());
        let stopped = stop_all(pid, &all);
        for (name, thread) in &stopped {
            assert_eq!(thread.open(&secret), Err(Errno::ACCESS), "{name}");
            if THREADS.contains(name) {
                assert_eq!(thread.open(of_kernel), Ok(()), "{name}");
            } else if *name == FORCED_END {
                assert_eq!(thread.open(of_kernel), Err(Errno::ACCESS), "{name}");
            }
        }
        // None of them is to continue from its place.
        kill_process(Pid::from_child(&guest.0), Signal::KILL).unwrap();
    });
}

#[test]
fn a_thread_that_makes_another_call_ends_kvmprof() {
    on_kvm(|| {
        let (mut guest, _recording) = start("on");
        StoppedThread::stop(guest.pid(), "vcpu 0").let_go_to_make_socket();
        let ran = guest.wait();
        ran.assert_refused(STATUS, &["thread vcpu 0", "41 (socket,", "doesn't allow"]);
    });
}

/// A guest with these options, once the thread that reads the guest's programs has its filter.
fn start_reading(options: &[&Path]) -> Guest {
    let guest = Guest::start(Boot::Demo, options);
    contained_threads(guest.pid(), &["binaries"]);
    guest
}

/// Filters don't see the flags of openat2(2), so that without Landlock a thread could open any file for writing by it.
#[test]
fn a_thread_opens_files_by_a_structure_only_where_there_is_a_folder_with_the_guests_files() {
    on_kvm(|| {
        // The path doesn't exist, so that the answer isn't Landlock's.
        let nothing = c"/tmp/kvmprof-test-no-folder/file";
        let mut guest = start_reading(&[]);
        StoppedThread::stop(guest.pid(), "binaries").let_go_to_open_to_write(nothing);
        let words = ["thread binaries", "437 (openat2,", "doesn't allow"];
        guest.wait().assert_refused(STATUS, &words);

        let folder = tempfile::tempdir().unwrap();
        let guest = start_reading(&[Path::new("--sysroot"), folder.path()]);
        let thread = StoppedThread::stop(guest.pid(), "binaries");
        assert_eq!(thread.open_to_write(nothing), Err(Errno::NOENT));
        // It is not to continue from its place.
        guest.signal(Signal::KILL);
    });
}

/// No call is refused there, and refusals would be reported.
#[test]
fn calls_are_reported_and_made_when_that_is_asked_for() {
    on_kvm(|| {
        let (_folder, secret) = secret();
        let (guest, _recording) = start("log");
        let status = guest.command("status", &[]).stdout;
        assert!(status.contains("seccomp log"), "{status}");
        assert!(status.contains("landlock off"), "{status}");
        let thread = StoppedThread::stop(guest.pid(), "vcpu 0");
        assert_eq!(thread.open(&secret), Ok(()));
        assert_eq!(thread.make_socket(), Ok(()));
        let said = until("the call is reported", || {
            let said = guest.stderr();
            said.contains("sandbox").then_some(said)
        });
        let words = "Not allowed by the sandbox: thread vcpu, call 41 (socket), first argument 2";
        assert!(said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        guest.signal(Signal::KILL);
    });
}
