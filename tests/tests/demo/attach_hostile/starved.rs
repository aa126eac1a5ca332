//! A VMM whose vCPU's thread has no stack left: writes there wait for pages that are never filled (userfaultfd(2)).

use std::fs;
use std::process::{Command, Stdio};

use kvmprof_tests::{kvmprof, never_bring, not_run, on_kvm, until};
use rustix::process::{Pid, Signal, kill_process};

use super::vmm::Vmm;
use crate::attach_tracer::tracer;
use crate::jail::name;

/// Whether this host has userfaultfd.
fn has_userfault() -> bool {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at a place that the kernel chooses, which nobody touches.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0) };
    // SAFETY: as above.
    unsafe { never_bring(page as u64, 4096) }.is_ok()
}

/// Whether a thread of this process reads or writes memory of another one.
fn accesses_memory(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let mut calls = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| {
            let call = fs::read_to_string(thread.path().join("syscall")).ok()?;
            call.split(' ').next()?.parse::<libc::c_long>().ok()
        });
    calls.any(|call| [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev].contains(&call))
}

#[test]
fn one_signal_ends_a_start_that_waits_for_memory() {
    on_kvm(|| {
        if !has_userfault() {
            return not_run("this host has no userfaultfd");
        }
        let mut vmm = Vmm::start();
        vmm.tell("starve");
        let folder = tempfile::tempdir().unwrap();
        let mut attach = Command::new(kvmprof());
        attach.args(["attach", &vmm.pid().to_string(), "--socket"]);
        attach.arg(folder.path().join("socket"));
        let attach = attach.stderr(Stdio::piped()).spawn().unwrap();
        let tracer = until("it waits for the thread's memory", || {
            tracer(attach.id()).filter(|pid| accesses_memory(*pid))
        });
        kill_process(Pid::from_child(&attach), Signal::INT).unwrap();
        let ended = attach.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(
            said.contains("ended by a signal before it was attached"),
            "{said}"
        );
        until("its other process has ended, too", || {
            (name(tracer) != "kvmprof-tracer").then_some(())
        });
        // The VMM continues.
        until("the vCPU's thread is its own", || {
            (!vmm.is_traced()).then_some(())
        });
        assert!(vmm.is_running());
    });
}
