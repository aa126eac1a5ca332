//! `kvmprof attach`: guests that another process runs, this one or a `kvmprof run`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::wire::device;
use kvmprof_demo_guest::{Mode, ROWS, rows};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_recording::{ClockLedger, Mode as SampleMode};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Random, Sampled, assert_share, demo_row, kvmprof,
    on_kvm, recorded, run, sampling_rate, share, until,
};
use rustix::process::Signal;

/// It checks what it reads, and halts on an error.
const CHECKED: Boot = Boot::Test("workload=mmio");
const NO_OPTIONS: [&str; 0] = [];

/// A guest in this process, not held or sampled by it.
fn machine(boot: Boot, vcpus: u16) -> Machine {
    Machine::start_with_ports(boot, vcpus, Clock::default(), GuestAccess::None)
}

/// The clock's ledger in a status document, which balances.
fn ledger(guest: &Guest) -> ClockLedger {
    let ledger = guest.status().clock.ledger;
    assert!(ledger.balances(), "{ledger:?}");
    ledger
}

/// Waits until the guest's clock has taken this many samples.
fn until_sampled(guest: &Guest, samples: u64) {
    until("enough is sampled", || {
        (ledger(guest).sampled >= samples).then_some(())
    });
}

/// As [`machine`]'s own clock would see it.
#[test]
fn a_recording_agrees_with_the_guests_own_count() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let machine = machine(Boot::Demo, 1);
        machine.truth();
        let hz = sampling_rate(250).to_string();
        let pressure = CpuPressure::begin();
        let before = machine.truth();
        let options = ["--hz", &hz, "--jitter", "--record", path.to_str().unwrap()];
        let attached = Guest::attach(process::id(), Some(Boot::Demo), options);
        until_sampled(&attached, 1500);
        let cycles = machine.truth().cycles_since(&before);
        let status = attached.status();
        assert_eq!(status.clock.source, "ptrace");
        assert_eq!(status.machine.memory_bytes, 64 << 20);
        attached.stop();
        machine.stop();
        let (samples, contents) = recorded(&path);
        let account = contents.account;
        assert_eq!(contents.closed, Some(account));
        let mut counts = [0; ROWS];
        for sample in &samples {
            counts[demo_row(sample)] += 1;
        }
        let idle = rows().iter().position(|row| row.mode == Mode::Idle);
        counts[idle.unwrap()] += account.idle;
        let whole = counts.iter().sum();
        let sampled = Sampled::new(whole, account.stolen, account.lost, &pressure);
        let busy: u64 = cycles.iter().sum();
        for (row, (count, cycles)) in rows().iter().zip(counts.into_iter().zip(cycles)) {
            let (observed, expected) = (share(count, whole), share(cycles, busy));
            assert_share(row.name, observed, expected, sampled);
        }
    });
}

/// Threads that use all of the host's processors until this is dropped.
struct BusyThreads(Arc<AtomicBool>);

impl BusyThreads {
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whatever a vCPU's thread is doing when kvmprof is killed, and whatever else the host does, the thread continues: the guest checks each value
/// that it reads.
#[test]
fn a_killed_kvmprof_leaves_no_trace() {
    on_kvm(|| {
        let machine = machine(CHECKED, 2);
        machine.until_rounds(10, || {});
        let [_, threads] = holdings();
        let mut random = Random(1);
        let mut busy = None;
        for round in 0..100 {
            if round == 50 {
                busy = Some(BusyThreads::start());
            }
            let capture = ["ptrace", "kernel"][round % 2];
            let options = ["--hz", "1000", "--capture", capture];
            let attached = Guest::attach(process::id(), Some(CHECKED), options);
            let pcs = attached.open();
            pcs.ioctl(PROF_ALL, 0);
            // A different number of samples each time, so that it is killed at different points.
            until_sampled(&attached, random.below(8));
            drop(attached);
        }
        drop(busy);
        machine.until_rounds(1000, || {});
        assert_eq!(holdings()[1], threads);
        machine.stop();
    });
}

/// Each attachment finds the guest like the first one, and the VMM is unchanged.
#[test]
fn it_attaches_repeatedly_and_twice_at_once() {
    on_kvm(|| {
        let machine = machine(Boot::Demo, 2);
        machine.truth();
        let pid = process::id();
        let first = Guest::attach(pid, Some(Boot::Demo), ["--hz", "100"]);
        let second = Guest::attach(pid, Some(Boot::Demo), ["--hz", "100"]);
        let clients = [first.open(), second.open()];
        for client in &clients {
            client.ioctl(PROF_ALL, 0);
        }
        until_sampled(&first, 100);
        until_sampled(&second, 100);
        drop(clients);
        first.stop();
        second.stop();
        let held = holdings();
        for round in 0..200 {
            let options = ["--hz", "1000", "--capture", ["ptrace", "kernel"][round % 2]];
            let attached = Guest::attach(pid, Some(Boot::Demo), options);
            let socket = attached.socket();
            // Some end while they sample, some before they do.
            if round % 5 < 2 {
                let pcs = attached.open();
                pcs.ioctl(PROF_ALL, 0);
                until_sampled(&attached, 5);
            }
            attached.stop();
            assert!(!socket.exists(), "{round}");
        }
        assert_eq!(holdings(), held);
        let before = machine.truth();
        until("the guest goes on", || {
            let now = machine.truth();
            let mut vcpus = now.vcpus.iter().zip(&before.vcpus);
            vcpus
                .all(|(now, before)| now.updates > before.updates + 10)
                .then_some(())
        });
        machine.stop();
    });
}

/// A process's resources: its descriptors and its threads, none of which is traced.
fn holdings() -> [usize; 2] {
    let count = |folder| fs::read_dir(folder).unwrap().count();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains("TracerPid:\t0\n"), "{status}");
    }
    [count("/proc/self/fd"), count("/proc/self/task")]
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
    until_sampled(&attached, 20);
    vmm.signal(Signal::STOP);
    let before = counted(ledger(&attached));
    until("ticks are counted", || {
        (counted(ledger(&attached)) >= before + 50).then_some(())
    });
    vmm.signal(Signal::CONT);
    until_sampled(&attached, ledger(&attached).sampled + 20);
    drop(pcs);
    vmm.signal(Signal::TERM);
    assert_eq!(vmm.wait().status, 0);
    let ran = attached.wait();
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stderr.contains("has ended"), "{ran:?}");
}

/// What is in the file from before doesn't count.
#[test]
fn a_text_on_the_guests_console_ends_it() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let [console, recording] = ["console", "recording"].map(|name| folder.path().join(name));
        fs::write(&console, "login:\nlog").unwrap();
        let machine = machine(Boot::Demo, 1);
        machine.truth();
        let [file, record] = [&console, &recording].map(|path| path.to_str().unwrap());
        let options = ["--until", "login:", "--console", file, "--record", record];
        let mut attached = Guest::attach(process::id(), Some(Boot::Demo), options);
        until_sampled(&attached, 20);
        let mut written = File::options().append(true).open(&console).unwrap();
        written.write_all(b"out\r\ndebian login: ").unwrap();
        let ran = attached.wait();
        assert_eq!(ran.status, 0, "{ran:?}");
        let (samples, contents) = recorded(&recording);
        assert!(samples.len() >= 20);
        assert_eq!(contents.closed, Some(contents.account));
        machine.stop();
        let socket = folder.path().join("socket");
        let pid = process::id().to_string();
        let words = [
            "attach",
            &pid,
            "--socket",
            socket.to_str().unwrap(),
            "--until",
            "login:",
        ];
        run(words).assert_refused(2, &["--console"]);
    });
}

/// Only kvmprof's own VMM has these functions.
#[test]
fn options_that_need_kvmprofs_own_vmm_are_refused() {
    on_kvm(|| {
        let machine = machine(Boot::Demo, 1);
        machine.truth();
        let attached = Guest::attach(process::id(), Some(Boot::Demo), NO_OPTIONS);
        let connection = attached.connect();
        for number in [device::PROFIL, device::PMC] {
            let opened = connection.open(number, 0);
            assert_eq!(
                opened.err().and_then(|error| error.errno()),
                Some(Errno::ENODEV)
            );
        }
        let file = attached.folder().join("events").display().to_string();
        let ran = attached.command(
            "record",
            &["--event", "exits:1", "--output", &file, "--seconds", "1"],
        );
        ran.assert_refused(1, &["--event", "attach"]);
        attached.stop();
        machine.stop();
    });
}

#[test]
fn errors_say_what_is_wrong() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let socket = socket.to_str().unwrap();
        run(["attach", "nobody", "--socket", socket])
            .assert_refused(1, &["nobody", "kvmprof list"]);
        let own = process::id().to_string();
        run(["attach", &own, "--socket", socket]).assert_refused(1, &["kvmprof list"]);
        run(["attach", &own]).assert_refused(2, &["--socket", "--record"]);
        run(["attach", &own, "--socket", socket, "--hz", "0"]).assert_refused(2, &["--hz"]);
        let machine = machine(Boot::Demo, 1);
        let words = ["attach", &own, "--socket", socket, "--kernel"];
        run(words.into_iter().chain(["/nowhere"])).assert_refused(1, &["/nowhere"]);
        run(words.into_iter().chain(["/etc/passwd"])).assert_refused(1, &["/etc/passwd"]);
        let words = [
            "attach",
            &own,
            "--socket",
            socket,
            "--until",
            "login:",
            "--console",
        ];
        run(words.into_iter().chain(["/nowhere"])).assert_refused(1, &["/nowhere"]);
        run(words.into_iter().chain(["/dev/null"])).assert_refused(1, &["no regular file"]);
        let there = [
            "attach",
            &own,
            "--record",
            "/nowhere/recording",
            "--pid-at",
            "none",
        ];
        run(there).assert_refused(1, &["/nowhere/recording"]);
        machine.stop();
    });
}

/// Nobody else would get samples.
#[test]
fn a_recording_that_nobody_reads_any_more_ends_it() {
    on_kvm(|| {
        let machine = machine(Boot::Demo, 1);
        machine.truth();
        let pid = process::id().to_string();
        let words = [
            "attach",
            &pid,
            "--pid-at",
            "none",
            "--record",
            "/dev/stdout",
        ];
        let mut attached = Command::new(kvmprof())
            .args(words)
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
        let machine = machine(Boot::Demo, 1);
        machine.truth();
        let options = ["--pid-at", "none", "--record", path.to_str().unwrap()];
        let attached = Guest::attach(process::id(), None, options);
        until_sampled(&attached, 50);
        assert_eq!(attached.status().machine.linux, None);
        attached.stop();
        machine.stop();
        let (samples, _) = recorded(&path);
        assert!(samples.iter().all(|sample| sample.pid == -1));
        assert!(samples.iter().any(|sample| sample.mode == SampleMode::User));
    });
}
