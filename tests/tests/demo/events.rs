//! Recordings with an event as the source of ticks: the samples are where the guest exits, as many as it counted itself.

use std::path::Path;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::recorder::{
    EVENT_CACHE_MISSES, EVENT_CYCLES, EVENT_EXITS, EVENT_GUEST_TIME, EVENT_PORT, MAX_PERIOD,
    MIN_CYCLES, MIN_GUEST_TIME, REC_EVENT, REC_START, STACK_KERNEL, STACK_USER,
};
use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_recording::file::Contents;
use kvmprof_recording::status::Status;
use kvmprof_recording::{ConsumerLedger, Mode, Sample, SamplingEvent};
use kvmprof_test_guest::{EXIT_ROUNDS, Exits, IMAGE};
use kvmprof_tests::{
    Boot, Clock, Guest, Machine, errno_of, on_kvm, recorded_with_frames, run, share, until,
};

fn event(text: &str) -> SamplingEvent {
    text.parse().unwrap()
}

/// The samples of a complete recording, and the addresses of its first frames.
fn samples(path: &Path) -> (Vec<Sample>, Contents) {
    let (samples, contents) = recorded_with_frames(path);
    let account = contents.account;
    assert_eq!(contents.closed, Some(account));
    assert_eq!(
        (account.idle, account.stolen),
        (0, 0),
        "an event is neither"
    );
    for (sample, frames) in &samples {
        assert_eq!(frames.first().unwrap_or(&sample.pc), &sample.pc);
    }
    let samples = samples.into_iter().map(|(sample, _)| sample);
    (samples.collect(), contents)
}

/// Runs the workload `exits` to its end on two vCPUs without a clock, recorded by `event`; returns the samples, and each
/// vCPU's own counts.
fn record_exits(event: SamplingEvent) -> (Vec<Sample>, Contents, Vec<Exits>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let boot = Boot::Test("workload=exits");
    let machine = Machine::recorded_by(boot, 2, Clock::default(), Some(event), &path);
    let counters = until("the guest is done", || {
        let counters = machine.counters();
        let all = counters.iter().all(|one| one.rounds == EXIT_ROUNDS);
        all.then_some(counters)
    });
    let clock = machine.status().clock;
    assert!(!clock.running);
    assert_eq!(clock.event, Some(event.to_string()));
    machine.stop();
    let (samples, contents) = samples(&path);
    assert_eq!(contents.info.event, Some(event));
    assert_eq!(contents.info.hz, 0);
    let exits = counters.iter().map(|counter| counter.exits).collect();
    (samples, contents, exits)
}

/// An instruction of the workload `exits`: its symbol, its process, its mode, and its number of exits by the guest's own
/// count.
struct Row {
    symbol: &'static str,
    pid: i32,
    mode: Mode,
    count: u64,
}

fn rows(exits: &[Exits]) -> [Row; 4] {
    let row = |symbol, pid, mode, count: fn(&Exits) -> u64| Row {
        symbol,
        pid,
        mode,
        count: exits.iter().map(count).sum(),
    };
    [
        row("exit_by_port_write", 101, Mode::User, |vcpu| {
            vcpu.port_writes
        }),
        row("exit_by_port_read", 102, Mode::Kernel, |vcpu| {
            vcpu.port_reads
        }),
        row("exit_by_mmio_read", 103, Mode::Kernel, |vcpu| {
            vcpu.mmio_reads
        }),
        row("exit_by_mmio_write", 201, Mode::Kernel, |vcpu| {
            vcpu.mmio_writes
        }),
    ]
}

/// How many of `samples` are at the instruction of `row`. All of them are of its process, in its mode.
fn count(samples: &[Sample], row: &Row) -> u64 {
    let symbol = IMAGE.symbol(row.symbol).unwrap();
    let there = symbol.address..symbol.address + symbol.size;
    let at = samples.iter().filter(|sample| there.contains(&sample.pc));
    at.map(|sample| assert_eq!((sample.pid, sample.mode), (row.pid, row.mode), "{sample:?}"))
        .count() as u64
}

/// Every exit is a sample inside the instruction that made it, of the process that it was made for: as many as the guest
/// has counted. In addition, the guest has only written its greeting.
#[test]
fn every_exit_is_sampled_at_its_instruction() {
    on_kvm(|| {
        let (samples, contents, exits) = record_exits(event("exits:1"));
        let account = contents.account;
        let (mut at, mut missing) = (0, 0);
        for row in rows(&exits) {
            let found = count(&samples, &row);
            assert!(found <= row.count, "{} {found} {}", row.symbol, row.count);
            assert!(found > 0, "{}", row.symbol);
            at += found;
            missing += row.count - found;
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

/// The ledgers of all started recorders.
fn ledgers(status: &Status) -> Vec<ConsumerLedger> {
    let recorders = status.recorders();
    let ledgers: Vec<_> = recorders.map(|recorder| recorder.ledger).collect();
    assert!(ledgers.iter().all(ConsumerLedger::balances), "{ledgers:?}");
    ledgers
}

fn until_ticks(guest: &Guest, recorder: usize, ticks: u64) {
    until("ticks are recorded", || {
        (ledgers(&guest.status())[recorder].ticks >= ticks).then_some(())
    });
}

#[test]
fn an_event_is_chosen_before_the_start() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=kernel-pio"), ["--hz", "0"]);
        let connection = guest.connect();
        let recorder = open(&connection);
        for kind in [0, EVENT_CACHE_MISSES + 1, u32::MAX] {
            assert_eq!(errno_of(choose(&recorder, kind, 1)), Errno::ENODEV);
        }
        let most = i64::try_from(MAX_PERIOD).unwrap();
        let beyond = most + 1;
        for period in [0, -1, beyond, 1 << 40, i64::MAX, i64::MIN] {
            let refused = choose(&recorder, EVENT_EXITS, period);
            assert_eq!(errno_of(refused), Errno::EINVAL, "{period}");
        }
        for (kind, least) in [
            (EVENT_GUEST_TIME, MIN_GUEST_TIME),
            (EVENT_CYCLES, MIN_CYCLES),
        ] {
            let below = i64::try_from(least).unwrap() - 1;
            assert_eq!(errno_of(choose(&recorder, kind, below)), Errno::EINVAL);
        }
        for data in [&[1][..], &[1, 0, 0], &[1, 0, 0, 0, 0]] {
            let refused = recorder.ioctl_with(REC_EVENT, 1, data, 0);
            assert_eq!(errno_of(refused), Errno::EINVAL);
        }
        // Refused settings change nothing, and the last accepted one counts.
        choose(&recorder, EVENT_EXITS, 1).unwrap();
        recorder.ioctl(REC_EVENT, 0).unwrap();
        assert_eq!(errno_of(start(&recorder)), Errno::EINVAL, "no clock");
        choose(&recorder, EVENT_EXITS, most).unwrap();
        choose(&recorder, EVENT_EXITS, 10).unwrap();
        start(&recorder).unwrap();
        assert_eq!(errno_of(choose(&recorder, EVENT_EXITS, 10)), Errno::EBUSY);
        until_ticks(&guest, 0, 100);
        assert_eq!(guest.status().clock.event.as_deref(), Some("exits:10"));
        guest.stop();
    });
}

/// What interrupts the guest from outside isn't an exit of its own.
#[test]
fn kicks_are_not_events() {
    on_kvm(|| {
        let boot = Boot::Test("workload=spin");
        let machine = Machine::start_with_ports(boot, 2, Clock::default(), GuestAccess::None);
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
        assert_eq!(ledgers(&machine.status())[0], ConsumerLedger::default());
        machine.stop();
    });
}

/// `kvmprof record` and the commands that show a recording name the event.
#[test]
fn record_and_report_name_the_event() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=kernel-pio"), ["--hz", "100"]);
        let path = guest.folder().join("out");
        let path = path.to_str().unwrap();
        let words = ["--output", path, "--event", "port-write:20"];
        let ran = guest.record(100, &words);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        let (all, _) = samples(Path::new(path));
        let function = IMAGE.symbol("write_port_in_kernel").unwrap();
        let there = function.address..function.address + function.size;
        assert!(!all.is_empty());
        assert!(all.iter().all(|sample| there.contains(&sample.pc)));
        assert!(all.iter().all(|sample| sample.pid == 102));
        // The time between events isn't known.
        let ran = run(["stalls", path]);
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stderr.contains("was sampled by an event"), "{ran:?}");

        // Another process has nothing but the number of its ticks.
        let of_another = [&words[..], &["--pid", "101"]].concat();
        let ran = guest.record(100, &of_another);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        let (samples, contents) = samples(Path::new(path));
        assert!(samples.is_empty() && contents.account.ungathered > 0);
        assert_eq!(
            contents.account.lost + contents.account.ungathered,
            contents.account.ticks
        );

        let pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        let ran = guest.command("record", &words);
        ran.assert_refused(1, &["sampled by the clock", "EBUSY"]);
        pcs.device.close().unwrap();
        let recorder = open(&guest.connect());
        choose(&recorder, EVENT_PORT, 1).unwrap();
        start(&recorder).unwrap();
        let without = ["--output", path, "--seconds", "0.5"];
        let ran = guest.command("record", &without);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert!(
            ran.stdout.contains("samples of every port access"),
            "{ran:?}"
        );
        let ran = run(["report", path]);
        assert!(ran.stdout.contains("sampled: every port access"), "{ran:?}");
        let ran = guest.command("status", &[]);
        let words = "stopped, ticks are every port access";
        assert!(ran.stdout.contains(words), "{ran:?}");
        guest.stop();
    });
}
