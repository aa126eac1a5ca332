//! The demo guest of this process, sampled in the host's kernel by an attached kvmprof: samples agree with the guest's own count, and with the
//! addresses of its programs.

use std::ffi::OsStr;

use kvmprof_demo_guest::{Mode, ROWS, rows};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_recording::file::Contents;
use kvmprof_recording::status::ClockStatus;
use kvmprof_recording::{Mode as SampleMode, Sample};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Sampled, assert_share, check_demo_processes,
    demo_row, on_kvm, recorded_with_frames, run, sampling_rate, share, until,
};
use tempfile::TempDir;

/// kvmprof, attached to the guest of this process, which records it.
struct Attachment {
    guest: Guest,
    recording: TempDir,
}

impl Attachment {
    fn start(hz: u32) -> Self {
        let recording = tempfile::tempdir().unwrap();
        let path = recording.path().join("recording");
        let hz = hz.to_string();
        let options = ["--capture", "kernel", "--hz", &hz, "--record"].map(OsStr::new);
        let options = options.into_iter().chain([path.as_os_str()]);
        let guest = Guest::attach(std::process::id(), Some(Boot::Demo), options);
        Self { guest, recording }
    }

    /// The clock in the status, whose account balances.
    fn clock(&self) -> ClockStatus {
        let clock = self.guest.status().clock;
        assert!(clock.ledger.balances(), "{clock:?}");
        clock
    }

    /// A busy host steals many ticks.
    fn until_sampled(&self, samples: u64) -> ClockStatus {
        until("there are enough samples", || {
            let clock = self.clock();
            (clock.ledger.sampled >= samples).then_some(clock)
        })
    }

    /// Ends it, and returns its recording.
    fn stop(self) -> (Contents, Vec<(Sample, Vec<u64>)>) {
        self.guest.stop();
        let (samples, contents) = recorded_with_frames(&self.recording.path().join("recording"));
        assert_eq!(contents.closed, Some(contents.account));
        (contents, samples)
    }
}

fn check_processes(samples: &[(Sample, Vec<u64>)]) {
    let user = with_process(samples).filter(|sample| sample.mode == SampleMode::User);
    check_demo_processes(user.map(|sample| (sample.pc, sample.pid)));
}

/// The samples without those few whose process the host's kernel couldn't read: it doesn't wait for a page that the host has reclaimed or moves.
fn with_process(samples: &[(Sample, Vec<u64>)]) -> impl Iterator<Item = &Sample> {
    let unread = |sample: &Sample| sample.mode == SampleMode::User && sample.pid == -1;
    let count = samples.iter().filter(|(sample, _)| unread(sample)).count();
    assert!(count * 100 <= samples.len(), "{count} of {}", samples.len());
    let samples = samples.iter().map(|(sample, _)| sample);
    samples.filter(move |sample| !unread(sample))
}

/// Each process has the share of all ticks by the guest's own count.
fn check_shares(
    contents: &Contents,
    samples: &[(Sample, Vec<u64>)],
    cycles: [u64; ROWS],
    pressure: &CpuPressure,
) {
    let mut counts = [0; ROWS];
    for sample in with_process(samples) {
        counts[demo_row(sample)] += 1;
    }
    let account = contents.account;
    let whole = counts.iter().sum::<u64>() + account.idle;
    println!("{counts:?} {account:?} {cycles:?}");
    let sampled = Sampled::new(whole, account.stolen, account.lost, pressure);
    for ((row, count), own) in rows().iter().zip(counts).zip(cycles) {
        if row.mode == Mode::User {
            let (observed, expected) = (share(count, whole), share(own, cycles.iter().sum()));
            assert_share(row.name, observed, expected, sampled);
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
        let attached = Attachment::start(sampling_rate(1000));
        let clock = attached.until_sampled(3000);
        assert_eq!(clock.source, "kernel");
        let (contents, samples) = attached.stop();
        let cycles = machine.truth().cycles_since(&before);
        machine.stop();
        check_processes(&samples);
        check_shares(&contents, &samples, cycles, &pressure);
        for (sample, frames) in &samples {
            // The stack begins at the program counter, which isn't a guess.
            assert!(frames.first().is_none_or(|first| *first == sample.pc));
        }
    });
}

#[test]
fn vcpus_are_accounted_for_each() {
    on_kvm(|| {
        let clock = Clock::default();
        let machine = Machine::start_with_ports(Boot::Demo, 2, clock, GuestAccess::None);
        machine.truth();
        let attached = Attachment::start(sampling_rate(500));
        attached.until_sampled(1500);
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
