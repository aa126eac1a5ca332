//! Recordings with an event as the source of ticks: the samples are where the guest exits, as many as it counted itself.

use std::path::Path;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{PCS_GETHZ, PROF_ALL};
use kvmprof_abi::prf::ALL_VCPUS;
use kvmprof_abi::recorder::{
    EVENT_EXITS, EVENT_PORT, REC_EVENT, REC_START, STACK_KERNEL, STACK_USER,
};
use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_recording::file::Contents;
use kvmprof_recording::{ConsumerLedger, Mode, Sample, SamplingEvent};
use kvmprof_test_guest::{EXIT_ROUNDS, IMAGE};
use kvmprof_tests::{
    Boot, Clock, Guest, Machine, Prf, errno_of, on_kvm, recorded_with_frames, run, share, until,
    until_recorded,
};

/// The instructions of the workload `exits`: the symbol, the process and the mode of each, and how often a vCPU executes it in a round.
pub const EXITS: [(&str, i32, Mode, u64); 4] = [
    ("exit_by_port_write", 101, Mode::User, 4),
    ("exit_by_port_read", 102, Mode::Kernel, 3),
    ("exit_by_mmio_read", 103, Mode::Kernel, 2),
    ("exit_by_mmio_write", 201, Mode::Kernel, 1),
];

/// The samples of a complete recording, each with its process and its program counter.
pub fn samples(path: &Path) -> (Vec<Sample>, Contents) {
    let (samples, contents) = recorded_with_frames(path);
    let account = contents.account;
    assert_eq!(contents.closed, Some(account));
    let neither = (account.idle, account.stolen);
    assert_eq!(neither, (0, 0), "an event is neither");
    for (sample, frames) in &samples {
        assert_eq!(frames.first().unwrap_or(&sample.pc), &sample.pc);
    }
    let samples = samples.into_iter().map(|(sample, _)| sample);
    (samples.collect(), contents)
}

/// Runs a workload of the test guest without a clock, recorded by `event`, until each vCPU has counted this many rounds.
pub fn record_rounds(
    workload: &'static str,
    vcpus: u16,
    event: &str,
    rounds: u64,
) -> (Vec<Sample>, Contents) {
    let event: SamplingEvent = event.parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let (boot, clock) = (Boot::Test(workload), Clock::default());
    let machine = Machine::recorded_by(boot, vcpus, clock, Some(event), &path);
    until("the guest is done", || {
        let counters = machine.counters();
        let is_done = counters.iter().all(|one| one.rounds >= rounds);
        is_done.then_some(())
    });
    let clock = machine.status().clock;
    assert_eq!(
        (clock.running, clock.event),
        (false, Some(event.to_string()))
    );
    machine.stop();
    let (samples, contents) = samples(&path);
    assert_eq!((contents.info.event, contents.info.hz), (Some(event), 0));
    (samples, contents)
}

/// How many of the samples in this function of the test guest are as they should be, and how many there are.
pub fn in_function(samples: &[Sample], name: &str, is: impl Fn(&Sample) -> bool) -> (u64, u64) {
    let function = IMAGE.symbol(name).unwrap();
    let there = function.address..function.address + function.size;
    let there = samples.iter().filter(|sample| there.contains(&sample.pc));
    let right = there.clone().filter(|sample| is(sample));
    (right.count() as u64, there.count() as u64)
}

/// Every exit is a sample inside the instruction that made it, of the process that it was made for: as many as the guest
/// has made. In addition, the guest has only written its greeting.
#[test]
fn every_exit_is_sampled_at_its_instruction() {
    on_kvm(|| {
        let (samples, contents) = record_rounds("workload=exits", 2, "exits:1", EXIT_ROUNDS);
        let account = contents.account;
        let (mut at, mut missing) = (0, 0);
        for (symbol, pid, mode, in_round) in EXITS {
            let made = 2 * EXIT_ROUNDS * in_round;
            let is_own = |sample: &Sample| (sample.pid, sample.mode) == (pid, mode);
            let (found, all) = in_function(&samples, symbol, is_own);
            assert_eq!(found, all, "{symbol} is of one process");
            assert!((1..=made).contains(&found), "{symbol}: {found} of {made}");
            at += found;
            missing += made - found;
        }
        assert!(missing <= account.lost, "{missing} of {account}");
        let of_all = share(at, account.samples);
        assert!(of_all >= 0.95, "{of_all} of {account}");
        // No rule leads out of the assembly code, but the stacks exist.
        assert!(samples.iter().all(|sample| sample.stack.frames() > 0));
    });
}

fn open(connection: &Connection) -> RemoteDevice {
    connection.open(device::RECORDER, 0).unwrap()
}

fn choose(recorder: &RemoteDevice, kind: u32, period: i64) -> Result<(), ClientError> {
    let data = kind.to_le_bytes();
    recorder.ioctl_with(REC_EVENT, period, &data, 0).map(|_| ())
}

fn start(recorder: &RemoteDevice) -> Result<(), ClientError> {
    recorder.ioctl(REC_START, STACK_KERNEL).map(|_| ())
}

/// What interrupts the guest from outside isn't an exit of its own.
#[test]
fn kicks_are_not_events() {
    on_kvm(|| {
        let boot = Boot::Test("workload=spin");
        let machine = Machine::unwatched(boot, 2);
        // From here on the guest makes no exit.
        machine.until_rounds(1000, || {});
        let connection = machine.connect();
        let recorder = open(&connection);
        choose(&recorder, EVENT_EXITS, 1).unwrap();
        start(&recorder).unwrap();
        for _ in 0..20 {
            // It needs more of each sample than the other one, so that every vCPU is kicked.
            let another = open(&connection);
            choose(&another, EVENT_EXITS, 1).unwrap();
            another.ioctl(REC_START, STACK_KERNEL | STACK_USER).unwrap();
            another.close().unwrap();
        }
        machine.until_rounds(1000, || {});
        assert_eq!(until_recorded(&connection, 0), ConsumerLedger::default());
        machine.stop();
    });
}

/// `kvmprof record` and the commands that show a recording name the event.
#[test]
fn record_and_report_name_the_event() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=endless-exits"), ["--hz", "100"]);
        let path = guest.folder().join("out");
        let path = path.to_str().unwrap();
        let words = ["--output", path, "--event", "port-write:20"];
        guest.record(100, &words).quiet();
        let (all, _) = samples(Path::new(path));
        let is_own = |sample: &Sample| sample.pid == 101;
        let there = in_function(&all, "exit_by_port_write", is_own);
        let all = all.len() as u64;
        assert!(all > 0 && there == (all, all), "{there:?} of {all}");
        // The time between events isn't known.
        let ran = run(["stalls", path]);
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stderr.contains("was sampled by an event"), "{ran:?}");

        // Another process has nothing but the number of its ticks.
        let of_another = [&words[..], &["--pid", "102"]].concat();
        guest.record(100, &of_another).quiet();
        let (samples, contents) = samples(Path::new(path));
        assert!(samples.is_empty() && contents.account.ungathered > 0);
        assert_eq!(
            contents.account.lost + contents.account.ungathered,
            contents.account.ticks
        );

        // Consumers of the clock's ticks keep them: an event has to wait for them, and a rate for an event.
        let pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 100);
        let ran = guest.command("record", &words);
        ran.assert_refused(1, &["sampled by the clock", "EBUSY"]);
        pcs.device.close().unwrap();
        let connection = guest.connect();
        let recorder = open(&connection);
        choose(&recorder, EVENT_PORT, 1).unwrap();
        let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
        prf.load(&[0, 0x20_0000, 0x30_0000]);
        prf.set(1);
        assert_eq!(errno_of(start(&recorder)), Errno::EBUSY);
        prf.set(0);
        start(&recorder).unwrap();
        // It counts each event, though its own rate is 100 Hz.
        prf.set(1);
        until("prf counts events", || {
            (prf.counts().sum() >= 1000).then_some(())
        });
        drop(prf);
        for (command, arguments, words) in [
            (
                "record",
                &["--output", path, "--seconds", "0.5"][..],
                "samples of every port access",
            ),
            ("status", &[], "stopped, ticks are every port access"),
            ("getpc", &["--all", "0.5", "--output", path], ""),
            (
                "pcsample",
                &["--pid", "101", "--nsamples", "100", "--seconds", "5"],
                "ticks are every port access",
            ),
        ] {
            let ran = guest.command(command, arguments);
            assert!(ran.stdout.contains(words), "{ran:?}");
            if command == "record" {
                let ran = run(["report", path]);
                assert!(ran.stdout.contains("sampled: every port access"), "{ran:?}");
            }
        }
        let ran = run(["pcstat", path]);
        assert!(
            ran.stdout.contains("none, an event makes the ticks"),
            "{ran:?}"
        );
        let ran = guest.command("getpc", &["--all", "0.5", "--hz", "100", "--output", path]);
        ran.assert_refused(1, &["an event makes the ticks", "EBUSY"]);
        guest.stop();
    });
}
