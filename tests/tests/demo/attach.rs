//! `kvmprof attach`: guests that another process runs, this one or a `kvmprof run`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::wire::device;
use kvmprof_demo_guest::Mode;
use kvmprof_recording::{ClockLedger, Mode as SampleMode, Sample};
use kvmprof_tests::{
    Boot, CAPTURES, CpuPressure, Guest, Machine, Random, Sampled, assert_rows,
    check_demo_processes, counts_of_rows, errno_of, kvmprof, on_kvm, recorded,
    recorded_with_frames, run, sampling_rate, until,
};
use rustix::process::Signal;

/// It checks what it reads, and halts on an error.
const CHECKED: Boot = Boot::Test("workload=mmio");
const NO_OPTIONS: [&str; 0] = [];

/// The clock's ledger in a status document, which balances.
fn ledger(guest: &Guest) -> ClockLedger {
    guest.until_sampled(0).ledger
}

/// The host's kernel doesn't wait for a page that the host has reclaimed or moves: such a sample has no process.
fn is_unread(sample: &Sample) -> bool {
    sample.mode == SampleMode::User && sample.pid == -1
}

/// As the machine's own clock would see it, by both captures.
#[test]
fn a_recording_agrees_with_the_guests_own_count() {
    on_kvm(|| {
        for (capture, hz) in [("ptrace", 250), ("kernel", 1000)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recording");
            let machine = Machine::unwatched(Boot::Demo, 1);
            let hz = sampling_rate(hz).to_string();
            let (pressure, before) = (CpuPressure::begin(), machine.truth());
            let options = ["--capture", capture, "--hz", &hz, "--record"];
            let jitter = (capture == "ptrace").then_some("--jitter");
            let options = options.into_iter().chain(path.to_str()).chain(jitter);
            let attached = Guest::attach(process::id(), Some(Boot::Demo), options);
            let clock = attached.until_sampled(2500);
            assert_eq!(clock.source, capture);
            assert_eq!(attached.status().machine.memory_bytes, 64 << 20);
            let cycles = machine.truth().cycles_since(&before);
            attached.stop();
            machine.stop();
            let (samples, contents) = recorded_with_frames(&path);
            let account = contents.account;
            assert_eq!(contents.closed, Some(account));
            let read = || samples.iter().filter(|(sample, _)| !is_unread(sample));
            let unread = samples.len() - read().count();
            let most = if capture == "kernel" {
                samples.len() / 100
            } else {
                0
            };
            assert!(unread <= most, "{capture}: {unread} of {}", samples.len());
            let user = read().filter(|(sample, _)| sample.mode == SampleMode::User);
            check_demo_processes(user.map(|(sample, _)| (sample.pc, sample.pid)));
            let counts = counts_of_rows(read().map(|(sample, _)| sample), account.idle);
            let whole = counts.iter().sum();
            let sampled = Sampled::new(whole, account.stolen, account.lost, &pressure);
            let is_judged = |mode| capture == "ptrace" || mode == Mode::User;
            assert_rows(counts, cycles, |row| is_judged(row.mode), sampled);
            for (sample, frames) in &samples {
                // The stack begins at the program counter, which isn't a guess.
                assert!(frames.first().is_none_or(|first| *first == sample.pc));
            }
        }
    });
}

#[test]
fn vcpus_are_accounted_for_each() {
    on_kvm(|| {
        let machine = Machine::unwatched(Boot::Demo, 2);
        for capture in CAPTURES {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recording");
            let hz = sampling_rate(500).to_string();
            let options = ["--capture", capture, "--hz", &hz, "--record"];
            let options = options.into_iter().chain(path.to_str());
            let attached = Guest::attach(process::id(), Some(Boot::Demo), options);
            attached.until_sampled(1500);
            attached.stop();
            let (samples, contents) = recorded(&path);
            assert!(contents.account.ticks >= 1500, "{:?}", contents.account);
            for vcpu in [0, 1] {
                let own = samples.iter().filter(|sample| sample.vcpu == vcpu);
                assert!(own.count() > 50, "{capture}: vCPU {vcpu}");
            }
        }
        machine.stop();
    });
}

/// Threads that use all of the host's processors until this is dropped.
struct BusyThreads {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyThreads {
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        Self {
            threads: (0..2).map(start).collect(),
            is_over,
        }
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Whatever a vCPU's thread is doing when kvmprof is killed, and whatever else the host does, the thread continues: the guest checks each value
/// that it reads.
#[test]
fn a_killed_kvmprof_leaves_no_trace() {
    on_kvm(|| {
        let machine = Machine::unwatched(CHECKED, 2);
        machine.until_rounds(10, || {});
        // Threads have their own names once they have begun.
        let threads = until("its last threads have begun", || {
            let threads = threads_untraced();
            let has = |name| threads.values().any(|line| line.ends_with(name));
            (has("events") && has("binaries")).then_some(threads)
        });
        let mut random = Random(1);
        let mut busy = None;
        for round in 0..100 {
            if round == 50 {
                busy = Some(BusyThreads::start());
            }
            let capture = CAPTURES[round % 2];
            let options = ["--hz", "1000", "--capture", capture];
            let attached = Guest::attach(process::id(), Some(CHECKED), options);
            let pcs = attached.open();
            pcs.ioctl(PROF_ALL, 0);
            // A different number of samples each time, so that it is killed at different points.
            attached.until_sampled(random.below(8));
            drop(attached);
        }
        drop(busy);
        machine.until_rounds(1000, || {});
        assert_eq!(threads_untraced(), threads);
        machine.stop();
    });
}

/// This process's threads with their names, none of which is traced.
fn threads_untraced() -> BTreeMap<OsString, String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let untraced = |task: io::Result<fs::DirEntry>| {
        let task = task.unwrap();
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        assert!(status.contains("TracerPid:\t0\n"), "{status}");
        (task.file_name(), status.lines().next().unwrap().to_owned())
    };
    tasks.map(untraced).collect()
}

/// While its VMM is stopped, a guest's ticks are stolen, or idle for the host's kernel; its end is kvmprof's.
#[test]
fn waits_for_a_stopped_vmm_end_with_it() {
    on_kvm(|| {
        check_stopped_vmm("ptrace", |ledger| ledger.stolen);
        check_stopped_vmm("kernel", |ledger| ledger.idle);
    });
}

/// `counted` is the account of the ticks of a stopped VMM.
fn check_stopped_vmm(capture: &str, counted: impl Fn(ClockLedger) -> u64) {
    let mut vmm = Guest::start(Boot::Demo, NO_OPTIONS);
    let options = ["--hz", "100", "--capture", capture];
    let mut attached = Guest::attach(vmm.pid(), Some(Boot::Demo), options);
    let pcs = attached.open();
    pcs.ioctl(PROF_ALL, 0);
    attached.until_sampled(20);
    vmm.signal(Signal::STOP);
    let before = counted(ledger(&attached));
    until("ticks are counted", || {
        (counted(ledger(&attached)) >= before + 50).then_some(())
    });
    vmm.signal(Signal::CONT);
    attached.until_sampled(ledger(&attached).sampled + 20);
    drop(pcs);
    vmm.signal(Signal::TERM);
    assert_eq!(vmm.wait().status, 0);
    let ran = attached.wait();
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stderr.contains("has ended"), "{ran:?}");
}

/// Only kvmprof's own VMM has these functions.
#[test]
fn what_needs_kvmprofs_own_vmm_is_refused() {
    on_kvm(|| {
        let machine = Machine::unwatched(Boot::Demo, 1);
        let attached = Guest::attach(process::id(), Some(Boot::Demo), NO_OPTIONS);
        let connection = attached.connect();
        for number in [device::PROFIL, device::PMC] {
            assert_eq!(errno_of(connection.open(number, 0)), Errno::ENODEV);
        }
        let file = attached.folder().join("events").display().to_string();
        let words = ["--event", "exits:1", "--output", &file, "--seconds", "1"];
        let ran = attached.command("record", &words);
        ran.assert_refused(1, &["kvm-exits and page-faults", "kvmprof attach"]);
        for action in ["pause", "resume", "power-button", "reset", "stop"] {
            let ran = attached.command("control", &[action]);
            ran.assert_refused(1, &["another program's", "kvmprof attach"]);
        }
        assert!(!attached.status().machine.paused);
        attached.stop();
        machine.stop();
    });
}

#[test]
fn errors_say_what_is_wrong() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket").display().to_string();
        let own = process::id().to_string();
        let refused = |words: &str, status, said: &[&str]| {
            let words = words.replace("SOCKET", &format!("--socket {socket}"));
            let words = words.replace("OWN", &own);
            run(words.split(' ')).assert_refused(status, said);
        };
        refused("attach nobody SOCKET", 1, &["nobody", "kvmprof list"]);
        refused("attach OWN SOCKET", 1, &["kvmprof list"]);
        refused("attach OWN", 2, &["--socket", "--record"]);
        refused("attach OWN SOCKET --hz 0", 2, &["--hz"]);
        refused("attach OWN SOCKET --until login:", 2, &["--console"]);
        let machine = Machine::unwatched(Boot::Demo, 1);
        for file in ["/nowhere", "/etc/passwd"] {
            refused(&format!("attach OWN SOCKET --kernel {file}"), 1, &[file]);
        }
        for (file, said) in [("/nowhere", "/nowhere"), ("/dev/null", "no regular file")] {
            let words = format!("attach OWN SOCKET --until login: --console {file}");
            refused(&words, 1, &[said]);
        }
        let file = "/nowhere/recording";
        refused(
            &format!("attach OWN --pid-at none --record {file}"),
            1,
            &[file],
        );
        machine.stop();
    });
}

/// Nobody else would get samples.
#[test]
fn a_recording_that_nobody_reads_any_more_ends_it() {
    on_kvm(|| {
        let machine = Machine::unwatched(Boot::Demo, 1);
        let pid = process::id().to_string();
        let mut attached = Command::new(kvmprof())
            .args(["attach", &pid, "--pid-at", "none"])
            .args(["--record", "/dev/stdout"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut recording = attached.stdout.take().unwrap();
        recording.read_exact(&mut [0; 2048]).unwrap();
        assert_eq!(attached.try_wait().unwrap(), None);
        drop(recording);
        let status = until("it ends", || attached.try_wait().unwrap());
        let mut said = String::new();
        let mut errors = attached.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("/dev/stdout isn't whole"), "{said}");
        machine.stop();
    });
}

/// Without --kernel and --pid-at, a guest other than Linux is reported, and sampled nevertheless.
#[test]
fn a_guest_without_linux_is_sampled_without_processes() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let machine = Machine::unwatched(Boot::Demo, 1);
        let options = ["--pid-at", "none", "--record", path.to_str().unwrap()];
        let attached = Guest::attach(process::id(), None, options);
        attached.until_sampled(50);
        assert_eq!(attached.status().machine.linux, None);
        attached.stop();
        machine.stop();
        let (samples, _) = recorded(&path);
        assert!(samples.iter().all(|sample| sample.pid == -1));
        assert!(samples.iter().any(|sample| sample.mode == SampleMode::User));
    });
}
