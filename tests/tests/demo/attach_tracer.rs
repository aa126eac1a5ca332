//! The two processes of `kvmprof attach`: the one that parses a guest's data has no rights, and the end of either leaves the VMM unchanged.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::process::Command;

use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_sandbox::filters::STATUS;
use kvmprof_tests::{
    Boot, CAPTURES, Guest, StoppedThread, interrupt, kvmprof, not_run, on_kvm, run, until,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::jail::child_named;
use super::sandbox::{Fields, contained_threads, threads};
use super::sandbox_taken_over::has_landlock;

const NO_OPTIONS: [&str; 0] = [];

/// kvmprof, which samples and records the guest of `vmm`, once all its threads have their filters.
fn attached(vmm: &Guest, capture: &str, recording: &Path) -> Guest {
    attached_with(vmm, capture, recording, &[])
}

/// The same with more options.
fn attached_with(vmm: &Guest, capture: &str, recording: &Path, options: &[&str]) -> Guest {
    let words = ["--capture", capture, "--hz", "100"];
    let words = words.iter().chain(options).chain(&["--record"]);
    let options = words.map(Path::new).chain([recording]);
    let attached = Guest::attach(vmm.pid(), Some(Boot::Demo), options);
    contained_threads(attached.pid(), &[]);
    attached.until_sampled(10);
    attached
}

/// The tracer of process `pid`, if that has one.
pub(super) fn tracer(pid: u32) -> Option<u32> {
    child_named(pid, "kvmprof-tracer")
}

fn number(fields: &Fields, name: &str) -> u64 {
    u64::from_str_radix(&fields[name], 16).unwrap()
}

/// A process's open files, as the links in /proc name them.
fn open_files(pid: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    links.map(|link| link.display().to_string()).collect()
}

#[test]
fn what_parses_has_no_rights_and_what_traces_parses_nothing() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let vmm = Guest::start(Boot::Demo, NO_OPTIONS);
        for capture in CAPTURES {
            let attached = attached(&vmm, capture, &folder.path().join(capture));
            let status = attached.command("status", &[]).stdout;
            for part in ["no new privileges on", "seccomp on", "capabilities on"] {
                assert!(status.contains(part), "{status}");
            }
            for (name, fields) in threads(attached.pid()) {
                assert_eq!(number(&fields, "CapPrm"), 0, "{capture} {name}");
                assert_eq!(fields["NoNewPrivs"], "1", "{capture} {name}");
            }
            let memory = format!("/proc/{}/mem", vmm.pid());
            let files = open_files(attached.pid());
            assert!(!files.contains(&memory), "{files:?}");
            if capture == "ptrace" {
                assert!(!files.iter().any(|file| file.contains("bpf")), "{files:?}");
            }
            let tracer = tracer(attached.pid()).unwrap();
            assert!(open_files(tracer).contains(&memory));
            // None of them parses: no thread has the name of a parsing one.
            let names: Vec<String> = threads(tracer).into_keys().collect();
            let parse = ["introspection", "modules", "binaries", "recorder", "events"];
            let mut all = names.iter();
            assert!(!all.any(|name| parse.contains(&name.as_str())), "{names:?}");
            attached.stop();
        }
        vmm.stop();
    });
}

/// A thread that a guest's memory has taken over.
#[test]
fn a_thread_that_is_taken_over_neither_reads_the_vmm_nor_leads_out() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let vmm = Guest::start(Boot::Demo, NO_OPTIONS);
        let path = |name: &str| CString::new(format!("/proc/{}/{name}", vmm.pid())).unwrap();
        if has_landlock() {
            let attached = attached(&vmm, "ptrace", &folder.path().join("first"));
            let names = ["tracer 0", "binaries", "events"];
            let stopped = names.map(|name| (name, StoppedThread::stop(attached.pid(), name)));
            for (name, thread) in &stopped {
                for file in ["mem", "maps", "environ"] {
                    let opened = thread.open(&path(file));
                    assert_eq!(opened, Err(Errno::ACCESS), "{name} {file}");
                }
                assert_eq!(thread.open(c"/etc/passwd"), Err(Errno::ACCESS), "{name}");
            }
            // None of them is to continue from its place.
            attached.signal(Signal::KILL);
            drop(stopped);
        } else {
            not_run("this host's kernel has no Landlock");
        }
        for (name, capture) in [("tracer 0", "ptrace"), ("sampler 0", "kernel")] {
            let mut attached = attached(&vmm, capture, &folder.path().join(capture));
            StoppedThread::stop(attached.pid(), name).let_go_to_make_socket();
            let thread = format!("thread {name}");
            attached
                .wait()
                .assert_refused(STATUS, &[&thread, "41 (socket,", "doesn't allow"]);
        }
        vmm.stop();
    });
}

/// How often the threads of a process that look at vCPUs have gone to sleep: at least once for each request.
fn looks(tracer: u32) -> u64 {
    let threads = kvmprof_tests::threads(tracer, "look");
    assert!(!threads.is_empty());
    threads.iter().map(|thread| thread.voluntary_switches).sum()
}

/// The process that parses maps the ring of samples itself: unlike by ptrace, none of them is asked for. Code is, where stacks lead to.
#[test]
fn samples_by_the_hosts_kernel_take_no_request() {
    on_kvm(|| {
        const SAMPLES: u64 = 300;
        let folder = tempfile::tempdir().unwrap();
        let vmm = Guest::start(Boot::Demo, NO_OPTIONS);
        for capture in CAPTURES {
            let recording = folder.path().join(capture);
            let attached = attached_with(&vmm, capture, &recording, &["--stacks", "none"]);
            let tracer = tracer(attached.pid()).unwrap();
            let sampled = || attached.status().clock.ledger.sampled;
            let (looked, before) = (looks(tracer), sampled());
            attached.until_sampled(before + SAMPLES);
            let looked = looks(tracer) - looked;
            match capture {
                "ptrace" => assert!(looked >= SAMPLES, "{looked}"),
                _ => assert!(looked < SAMPLES / 10, "{looked}"),
            }
            attached.stop();
        }
        vmm.stop();
    });
}

#[test]
fn the_end_of_the_tracer_is_reported_and_the_guest_continues() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let vmm = Guest::start(Boot::Demo, NO_OPTIONS);
        for capture in CAPTURES {
            let mut attached = attached(&vmm, capture, &folder.path().join(capture));
            let tracer = Pid::from_raw(tracer(attached.pid()).unwrap().cast_signed()).unwrap();
            kill_process(tracer, Signal::KILL).unwrap();
            let ran = attached.wait();
            ran.assert_refused(1, &["traces process", "has ended", "attach again"]);
        }
        let again = attached(&vmm, "ptrace", &folder.path().join("again"));
        again.until_sampled(20);
        again.stop();
        vmm.stop();
    });
}

/// The other process restores what it has moved, releases the VMM and ends by itself.
#[test]
fn the_tracer_ends_with_the_process_that_asks() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let vmm = Guest::start(Boot::Demo, NO_OPTIONS);
        let attached = attached(&vmm, "ptrace", &folder.path().join("recording"));
        let pcs = attached.open();
        pcs.ioctl(PROF_ALL, 0);
        let tracer = tracer(attached.pid()).unwrap();
        attached.signal(Signal::KILL);
        until("the tracer ends", || {
            (!Path::new(&format!("/proc/{tracer}")).exists()).then_some(())
        });
        for fields in threads(vmm.pid()).values() {
            assert_eq!(fields["TracerPid"], "0");
        }
        vmm.stop();
    });
}

/// A process that has got a VMM's pid since isn't taken for it.
#[test]
fn a_guest_is_named_by_its_pid_and_start_time() {
    on_kvm(|| {
        let vmm = Guest::start(Boot::Demo, NO_OPTIONS);
        let list = run(["list", "--json"]).json();
        let mut guests = list["guests"].as_array().unwrap().iter();
        let own = guests.find(|guest| guest["pid"] == vmm.pid());
        let start = own.unwrap()["start_time"].as_u64().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("recording").display().to_string();
        let other = format!("{}:{}", vmm.pid(), start + 1);
        let ran = run(["attach", &other, "--record", &record]);
        ran.assert_refused(1, &["no guest", &other]);
        let same = format!("{}:{start}", vmm.pid());
        let words = ["attach", &same, "--pid-at", "none", "--record", &record];
        let attached = Command::new(kvmprof()).args(words).spawn().unwrap();
        until("something is recorded", || {
            let file = fs::metadata(&record);
            file.is_ok_and(|file| file.len() > 512).then_some(())
        });
        assert_eq!(interrupt(attached).status, 0);
        vmm.stop();
    });
}
