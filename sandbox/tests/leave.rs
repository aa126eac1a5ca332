//! A program that runs no guest, taken over: what leads out of it is tried in a process of its own, and so is its own work.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, id};
use std::thread;

use kvmprof_sandbox::filters::{call_name, refuse_to_leave};
use kvmprof_sandbox::paths::{Restricted, restrict_changes};

/// Names a folder, in the process that is contained.
const CHILD: &str = "KVMPROF_TEST_FOLDER";

/// Calls that look into others or lead out, with their arguments.
fn attempts() -> Vec<(i64, [u64; 4])> {
    let program = c"/bin/true".as_ptr() as u64;
    let own = u64::from(id());
    let calls = [
        // PTRACE_TRACEME, PTRACE_SEIZE
        (libc::SYS_ptrace, [0, 0, 0, 0]),
        (libc::SYS_ptrace, [0x4206, 1, 0, 0]),
        (libc::SYS_process_vm_readv, [own, 0, 0, 0]),
        (libc::SYS_process_vm_writev, [own, 0, 0, 0]),
        (libc::SYS_pidfd_getfd, [0; 4]),
        (libc::SYS_kcmp, [own, own, 0, 0]),
        (libc::SYS_bpf, [5, 0, 0, 0]),
        (libc::SYS_perf_event_open, [0, 0, u64::MAX, u64::MAX]),
        (libc::SYS_execve, [program, 0, 0, 0]),
        (libc::SYS_execveat, [0, program, 0, 0]),
        (libc::SYS_fork, [0; 4]),
        (libc::SYS_vfork, [0; 4]),
        // A process, by the call that makes threads.
        (libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0]),
        (libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0, 0]),
        (libc::SYS_setns, [0; 4]),
        (libc::SYS_mount, [0; 4]),
        (libc::SYS_fsopen, [0; 4]),
        (libc::SYS_chroot, [c"/".as_ptr() as u64, 0, 0, 0]),
        (libc::SYS_mknodat, [0, 0, libc::S_IFCHR as u64, 0]),
        (libc::SYS_init_module, [0; 4]),
        (libc::SYS_finit_module, [0; 4]),
        (libc::SYS_kexec_load, [0; 4]),
        (libc::SYS_add_key, [0; 4]),
        (libc::SYS_userfaultfd, [0; 4]),
        (libc::SYS_io_uring_setup, [1, 0, 0, 0]),
        (libc::SYS_open_by_handle_at, [0; 4]),
        (libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0]),
    ];
    // The same calls by the numbers of another interface.
    let x32 = calls.map(|(call, arguments)| (call | 0x4000_0000, arguments));
    calls.into_iter().chain(x32).collect()
}

fn make((call, [first, second, third, fourth]): (i64, [u64; 4])) -> io::Result<()> {
    // SAFETY: no argument is an address that anything is written to.
    match unsafe { libc::syscall(call, first, second, third, fourth) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What the contained process does. Its exit status says whether all was as it has to be.
fn contained(folder: &PathBuf) {
    let other = folder.with_extension("other");
    let restricted = restrict_changes(std::slice::from_ref(folder)).unwrap();
    refuse_to_leave().unwrap();
    for attempt in attempts() {
        let error = make(attempt).unwrap_err();
        let name = call_name(attempt.0 & !0x4000_0000);
        let errno = error.raw_os_error();
        assert_eq!(errno, Some(libc::EPERM), "{attempt:?} {name:?}");
    }
    // Threads that it starts are contained, too.
    let on_another = thread::spawn(|| make((libc::SYS_bpf, [5, 0, 0, 0])).unwrap_err());
    let error = on_another.join().unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    // It does its own work.
    fs::create_dir(folder.join("inner")).unwrap();
    fs::write(folder.join("file"), "text").unwrap();
    fs::rename(folder.join("file"), folder.join("inner/file")).unwrap();
    fs::remove_file(folder.join("inner/file")).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "other");
    if restricted == Restricted::No {
        return;
    }
    let denied = |done: io::Result<()>| done.unwrap_err().kind() == io::ErrorKind::PermissionDenied;
    assert!(denied(fs::write(&other, "changed")));
    assert!(denied(fs::remove_file(&other)));
    assert!(denied(fs::rename(&other, folder.join("mine"))));
    assert!(denied(File::create(other.with_extension("new")).map(drop)));
    let of_parent = format!("/proc/{}/mem", std::os::unix::process::parent_id());
    assert!(denied(File::open(of_parent).map(drop)));
}

#[test]
fn what_leads_out_is_refused_and_its_own_work_is_done() {
    if let Some(folder) = env::var_os(CHILD) {
        contained(&folder.into());
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.with_extension("other"), "other").unwrap();
    let test = "what_leads_out_is_refused_and_its_own_work_is_done";
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    let ran = command.env(CHILD, &folder).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let other = fs::read_to_string(folder.with_extension("other"));
    assert_eq!(other.unwrap(), "other");
}
