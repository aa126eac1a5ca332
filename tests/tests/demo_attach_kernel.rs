//! The demo guest of this process, sampled in the host's kernel by a kvmprof that is attached to it: samples agree with what
//! the guest has counted itself, and with where its programs are.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_demo_guest::{ELF, Mode, ROWS, function_at, rows};
use kvmprof_recording::file::Contents;
use kvmprof_recording::{Mode as SampleMode, Sample, StackEnd};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Machine, Sampled, assert_share, demo_row, kvmprof, on_kvm,
    recorded_with_frames, run, sampling_rate, share, until,
};
use kvmprof_vmm::virtio::GuestAccess;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const MAX_STATUS: usize = 1 << 20;
/// The programs' functions, and whose they are.
const FUNCTIONS: [(i32, [&str; 2]); 4] = [
    (101, ["weave", "weaver"]),
    (102, ["turn_wheel", "spinner"]),
    (103, ["card", "carder"]),
    (201, ["dye", "dyer"]),
];

/// kvmprof, attached to the guest of this process. Dropped, it is killed.
struct Attached {
    child: Child,
    folder: TempDir,
}

impl Attached {
    fn start(hz: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("demo.elf"), ELF).unwrap();
        let child = Command::new(kvmprof())
            .args(["attach", &std::process::id().to_string()])
            .args(["--capture", "kernel", "--hz", &hz.to_string()])
            .arg("--kernel")
            .arg(file("demo.elf"))
            .arg("--record")
            .arg(file("recording"))
            .arg("--socket")
            .arg(file("socket"))
            .stdin(Stdio::null())
            .stderr(File::create(file("stderr")).unwrap())
            .spawn()
            .unwrap();
        let mut attached = Self { child, folder };
        until("attach answers", || {
            if let Some(status) = attached.child.try_wait().unwrap() {
                panic!("attach has ended: {status}, {}", attached.stderr());
            }
            Connection::connect(&attached.file("socket")).ok()
        });
        attached
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.file("stderr")).unwrap()
    }

    /// The status's part of the clock, whose account balances.
    fn clock(&self) -> Value {
        let connection = Connection::connect(&self.file("socket")).unwrap();
        let document = connection.snapshot(device::STATUS, MAX_STATUS).unwrap();
        let status: Value = serde_json::from_slice(&document).unwrap();
        let clock = status["clock"].clone();
        let count = |name: &str| clock["ledger"][name].as_u64().unwrap();
        let parts = ["sampled", "idle", "stolen", "lost"].map(count);
        assert_eq!(count("ticks"), parts.iter().sum::<u64>(), "{clock}");
        clock
    }

    fn until_ticks(&self, ticks: u64) -> Value {
        until("enough ticks have passed", || {
            let clock = self.clock();
            (clock["ledger"]["ticks"].as_u64().unwrap() >= ticks).then_some(clock)
        })
    }

    /// Ends it by Ctrl-C; what it has recorded.
    fn stop(mut self) -> (Contents, Vec<(Sample, Vec<u64>)>) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let status = until("attach ends", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status} {}", self.stderr());
        assert_eq!(self.stderr(), "");
        let (samples, contents) = recorded_with_frames(&self.file("recording"));
        assert_eq!(contents.closed, Some(contents.account));
        (contents, samples)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program counter in a process's own code is that process's, and nobody else's.
fn check_processes(samples: &[(Sample, Vec<u64>)]) {
    let user: Vec<&Sample> = samples
        .iter()
        .map(|(sample, _)| sample)
        .filter(|sample| sample.mode == SampleMode::User)
        .collect();
    let is_own = |sample: &&&Sample| {
        let function = function_at(sample.pc).unwrap_or_default();
        let owner = FUNCTIONS
            .iter()
            .find(|(_, names)| names.contains(&function));
        owner.is_some_and(|(pid, _)| *pid == sample.pid)
    };
    let own = user.iter().filter(is_own).count();
    println!("{own} of {} user samples name their process", user.len());
    assert!(user.len() >= 500 && own * 100 >= user.len() * 99);
}

/// Each process has the share of all ticks that the guest has counted itself.
fn check_shares(
    contents: &Contents,
    samples: &[(Sample, Vec<u64>)],
    cycles: [u64; ROWS],
    pressure: &CpuPressure,
) {
    let mut counts = [0; ROWS];
    for (sample, _) in samples {
        counts[demo_row(sample)] += 1;
    }
    let account = contents.account;
    let whole = counts.iter().sum::<u64>() + account.idle;
    println!("{counts:?} {account:?} {cycles:?}");
    let sampled = Sampled::new(whole, account.stolen, account.lost, pressure);
    for ((row, count), own) in rows().iter().zip(counts).zip(cycles) {
        if row.mode == Mode::User {
            let shares = (share(count, whole), share(own, cycles.iter().sum()));
            assert_share(row.name, shares, sampled);
        }
    }
}

#[test]
fn samples_of_the_hosts_kernel_agree_with_the_guests_own_count() {
    on_kvm(|| {
        let clock = Clock::default();
        let machine = Machine::start_with_ports(Boot::Demo, 1, clock, GuestAccess::None);
        let before = machine.truth();
        let pressure = CpuPressure::begin();
        let attached = Attached::start(sampling_rate(1000));
        let clock = attached.until_ticks(4000);
        assert_eq!(clock["source"], "kernel");
        let (contents, samples) = attached.stop();
        let cycles = machine.truth().cycles_since(&before);
        machine.stop();
        check_processes(&samples);
        check_shares(&contents, &samples, cycles, &pressure);
        for (sample, frames) in &samples {
            // Nobody knows the stack, and the program counter is no guess.
            let ends = [sample.stack.kernel_end, sample.stack.user_end];
            assert!(!ends.contains(&StackEnd::Complete));
            assert!(frames.is_empty() || frames[..] == [sample.pc]);
        }
    });
}

#[test]
fn vcpus_are_accounted_for_each() {
    on_kvm(|| {
        let clock = Clock::default();
        let machine = Machine::start_with_ports(Boot::Demo, 2, clock, GuestAccess::None);
        machine.truth();
        let attached = Attached::start(sampling_rate(500));
        attached.until_ticks(1500);
        let (contents, samples) = attached.stop();
        machine.stop();
        println!("{:?}", contents.account);
        assert!(contents.account.ticks >= 1500);
        for vcpu in [0, 1] {
            let own = samples.iter().filter(|(sample, _)| sample.vcpu == vcpu);
            assert!(own.count() > 50, "vCPU {vcpu}");
        }
        check_processes(&samples);
    });
}

#[test]
fn a_random_phase_is_refused() {
    let words = [
        "attach",
        "1",
        "--capture",
        "kernel",
        "--jitter",
        "--socket",
        "/nowhere",
    ];
    run(words).assert_refused(2, &["--jitter", "--capture ptrace"]);
}
