//! Recordings by events that the host's kernel counts: the samples are of the processes that cause them, as many as the guest
//! counts.

use std::ffi::OsStr;
use std::path::Path;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{REC_EVENT, REC_START, STACK_KERNEL};
use kvmprof_abi::wire::device;
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_demo_guest::{Mode as GuestMode, row_of, rows};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_profiling::kernel_events::unavailable;
use kvmprof_recording::file::Contents;
use kvmprof_recording::{ConsumerLedger, EventKind, Mode, Sample, SamplingEvent};
use kvmprof_test_guest::{EXIT_ROUNDS, HALT_ROUNDS, IMAGE, TOUCH_ROUNDS, TURNS};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Sampled, assert_share, errno_of, in_lab, on_kvm,
    on_kvm_that_counts, recorded, run, share, status_of, until,
};

/// The processes that halt and touch memory, in the order of [`TURNS`].
const PIDS: [i32; 3] = [101, 102, 103];

fn event(text: &str) -> SamplingEvent {
    text.parse().unwrap()
}

/// The samples of a complete recording.
fn samples(path: &Path) -> (Vec<Sample>, Contents) {
    let (samples, contents) = recorded(path);
    let account = contents.account;
    assert_eq!(contents.closed, Some(account));
    assert_eq!(
        (account.idle, account.stolen),
        (0, 0),
        "an event is neither"
    );
    (samples, contents)
}

/// Runs the test guest without a clock, recorded by `event`, until each vCPU has counted this many rounds; returns the samples
/// and the counts.
fn record_rounds(
    workload: &'static str,
    vcpus: u16,
    event: SamplingEvent,
    rounds: u64,
) -> (Vec<Sample>, Contents) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let machine = Machine::recorded_by(
        Boot::Test(workload),
        vcpus,
        Clock::default(),
        Some(event),
        &path,
    );
    until("the guest is done", || {
        let counters = machine.counters();
        counters
            .iter()
            .all(|one| one.rounds >= rounds)
            .then_some(())
    });
    assert_eq!(machine.status().clock.event, Some(event.to_string()));
    machine.stop();
    let (samples, contents) = samples(&path);
    assert_eq!(contents.info.event, Some(event));
    (samples, contents)
}

/// Those of `samples` that are in this function of the test guest.
fn in_function<'a>(samples: &'a [Sample], name: &str) -> Vec<&'a Sample> {
    let function = IMAGE.symbol(name).unwrap();
    let there = function.address..function.address + function.size;
    let samples = samples.iter();
    samples
        .filter(|sample| there.contains(&sample.pc))
        .collect()
}

fn of_process(samples: &[&Sample], pid: i32) -> u64 {
    samples.iter().filter(|sample| sample.pid == pid).count() as u64
}

/// Each halt is a sample at the HLT, of the process on whose behalf the kernel has halted.
#[test]
fn every_halt_is_sampled_where_the_vcpu_halts() {
    on_kvm_that_counts(&[EventKind::Halt], || {
        let vcpus = 2;
        let (samples, contents) =
            record_rounds("workload=halts", vcpus, event("halt:1"), HALT_ROUNDS);
        let halts = in_function(&samples, "halt_once");
        // Only vCPUs that have finished halt otherwise, and those aren't woken up.
        assert_eq!(halts.len(), samples.len());
        for (pid, turns) in PIDS.into_iter().zip(TURNS) {
            let made = u64::from(vcpus) * HALT_ROUNDS * turns;
            let found = of_process(&halts, pid);
            println!("{pid}: {found} of {made}");
            // An interrupt before the HLT prevents the halt: on a slow host that is frequent.
            let most = made + contents.account.lost;
            let least = made / 2;
            assert!((least..=most).contains(&found), "{pid}: {found} of {made}");
        }
        assert!(halts.iter().all(|sample| sample.mode == Mode::Kernel));
    });
}

/// The first touch of memory is a page fault of the touching process, at the instruction.
#[test]
fn first_touches_of_memory_are_page_faults() {
    on_kvm_that_counts(&[EventKind::PageFaults], || {
        let event = event("page-faults:1");
        let (samples, contents) = record_rounds("workload=touches", 1, event, TOUCH_ROUNDS);
        let touches = in_function(&samples, "touch_memory");
        for (pid, turns) in PIDS.into_iter().zip(TURNS) {
            let made = TOUCH_ROUNDS * turns;
            let found = of_process(&touches, pid);
            println!("{pid}: {found} of {made}, {}", contents.account);
            // KVM may handle one again if its tables were changed meanwhile.
            let most = made + made / 3;
            assert!(
                (made..=most).contains(&found),
                "{pid}: {found} of {made} among {:x?}",
                samples
                    .iter()
                    .map(|sample| (sample.pid, sample.pc))
                    .collect::<Vec<_>>()
            );
        }
    });
}

/// Exits to kvmprof are exits to KVM, at the same instruction.
#[test]
fn exits_to_kvm_are_sampled_at_their_instructions() {
    on_kvm_that_counts(&[EventKind::KvmExits], || {
        let event = event("kvm-exits:1");
        let (samples, contents) = record_rounds("workload=exits", 2, event, EXIT_ROUNDS);
        println!("{}", contents.account);
        for (function, pid, in_round) in [
            ("exit_by_port_write", 101, 4),
            ("exit_by_port_read", 102, 3),
            ("exit_by_mmio_read", 103, 2),
            ("exit_by_mmio_write", 201, 1),
        ] {
            let made = 2 * EXIT_ROUNDS * in_round;
            let there = in_function(&samples, function);
            let found = of_process(&there, pid);
            println!("{function}: {found} of {made}");
            assert_eq!(found, there.len() as u64, "{function} is of one process");
            // A few more are by interrupts of the host, a few less if the ring was full.
            let least = (made * 19 / 20).saturating_sub(contents.account.lost);
            let most = made + made / 4;
            assert!(
                (least..=most).contains(&found),
                "{function}: {found} of {made}"
            );
        }
    });
}

/// In guest time, the demo guest's processes have the shares that it has measured itself. While it is halted no guest time
/// passes.
#[test]
fn guest_time_agrees_with_the_guests_own_count() {
    on_kvm_that_counts(&[EventKind::GuestTime], || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let pressure = CpuPressure::begin();
        let event = event("guest-time:1ms");
        let machine = Machine::recorded_by(Boot::Demo, 2, Clock::default(), Some(event), &path);
        let connection = machine.connect();
        until("enough is recorded", || {
            (recorder_ledger(&connection).recorded >= 2000).then_some(())
        });
        let cycles = machine.truth().cycles();
        machine.stop();
        let (samples, contents) = samples(&path);
        let mut counts = [0; kvmprof_demo_guest::ROWS];
        for sample in &samples {
            let mode = match sample.mode {
                Mode::User => GuestMode::User,
                Mode::Kernel => GuestMode::Kernel,
                Mode::Interrupt => GuestMode::Interrupt,
                Mode::Idle => GuestMode::Idle,
            };
            counts[row_of(mode, sample.pid, sample.pc).unwrap()] += 1;
        }
        let busy: Vec<usize> = (0..counts.len())
            .filter(|row| rows()[*row].mode != GuestMode::Idle)
            .collect();
        let sum = |counts: &[u64]| busy.iter().map(|row| counts[*row]).sum::<u64>();
        let (all_seen, all_own) = (sum(&counts), sum(&cycles));
        let sampled = Sampled::new(all_seen, 0, contents.account.lost, &pressure);
        for row in &busy {
            let (observed, expected) =
                (share(counts[*row], all_seen), share(cycles[*row], all_own));
            assert_share(rows()[*row].name, observed, expected, sampled);
        }
        let halted = share(counts.iter().sum::<u64>() - all_seen, samples.len() as u64);
        assert!(halted < 0.05, "{halted} of guest time while halted");
    });
}

/// However often an event is sampled, the guest continues.
#[test]
fn no_event_stops_the_guest() {
    on_kvm(|| {
        sample_each_event_as_often_as_possible();
    });
}

/// The same if KVM passes its tracepoints.
#[test]
fn no_tracepoint_stops_the_guest() {
    on_kvm_that_counts(&[EventKind::KvmExits, EventKind::PageFaults], || {
        sample_each_event_as_often_as_possible();
    });
}

/// All that exist here, one after the other.
fn sample_each_event_as_often_as_possible() {
    let boot = Boot::Test("workload=endless-exits");
    let machine = Machine::start_with_ports(boot, 2, Clock::default(), GuestAccess::None);
    let connection = machine.connect();
    for kind in EventKind::ALL {
        if let Some(why) = unavailable(kind) {
            println!("{}: {why}", kind.name());
            continue;
        }
        let event = SamplingEvent::new(kind, period(kind)).unwrap();
        let recorder = start(&connection, event);
        // Other clients are still served, too.
        machine.until_rounds(20, || {
            machine.status();
        });
        println!("{}: {:?}", kind.name(), recorder_ledger(&connection));
        recorder.close().unwrap();
    }
    machine.until_rounds(20, || {});
    machine.stop();
}

/// The minimum period, except for the lab's guest time: an interrupt each 100 us leaves an emulated host no time for anything
/// else.
fn period(kind: EventKind) -> u64 {
    const LAB_GUEST_TIME: u64 = 10_000_000;
    match kind {
        EventKind::GuestTime if in_lab() => LAB_GUEST_TIME,
        kind => kind.least_period(),
    }
}

fn start(connection: &Connection, event: SamplingEvent) -> RemoteDevice {
    let recorder = connection.open(device::RECORDER, 0).unwrap();
    let period = i64::try_from(event.period()).unwrap();
    let kind = event.kind().number().to_le_bytes();
    recorder.ioctl_with(REC_EVENT, period, &kind, 0).unwrap();
    recorder.ioctl(REC_START, STACK_KERNEL).unwrap();
    recorder
}

/// The ledger of the only recorder.
fn recorder_ledger(connection: &Connection) -> ConsumerLedger {
    let status = status_of(connection);
    let mut recorders = status.recorders();
    let ledger = recorders.next().unwrap().ledger;
    assert!(ledger.balances() && recorders.next().is_none());
    ledger
}

/// Events that this host doesn't count are refused before the recording, with the same reason as in `pmc list`.
#[test]
fn events_that_the_host_does_not_count_are_refused_with_the_reason() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=spin"), ["--hz", "100"]);
        let connection = guest.connect();
        let recorder = connection.open(device::RECORDER, 0).unwrap();
        let path = guest.folder().join("out");
        let socket = guest.socket();
        let list = ["pmc", "list", "--socket"].map(OsStr::new);
        let listed = run(list.into_iter().chain([socket.as_os_str()]));
        for kind in EventKind::ALL {
            let event = SamplingEvent::new(kind, kind.least_period()).unwrap();
            let period = i64::try_from(event.period()).unwrap();
            let chosen = recorder.ioctl_with(REC_EVENT, period, &kind.number().to_le_bytes(), 0);
            let Some(why) = unavailable(kind) else {
                chosen.unwrap();
                continue;
            };
            assert_eq!(errno_of(chosen), Errno::ENODEV, "{}", kind.name());
            let text = event.to_string();
            let words = ["--output", path.to_str().unwrap(), "--event", &text];
            let ran = guest.command("record", &words);
            ran.assert_refused(1, &["can't be sampled by", kind.name(), &why]);
            assert!(!path.exists());
            assert!(listed.stdout.contains(&why), "{listed:?}");
        }
        guest.stop();
    });
}
