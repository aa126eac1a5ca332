//! Recordings by events that the host's kernel counts: the samples are of the processes that cause them, as many as the guest
//! counts.

use std::ffi::OsStr;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{REC_EVENT, REC_START, STACK_KERNEL};
use kvmprof_abi::wire::device;
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_demo_guest::Mode as GuestMode;
use kvmprof_profiling::kernel_events::unavailable;
use kvmprof_recording::{EventKind, Mode, SamplingEvent};
use kvmprof_test_guest::{EXIT_ROUNDS, HALT_ROUNDS, TOUCH_ROUNDS, TURNS};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Sampled, assert_rows, counts_of_rows, errno_of,
    in_lab, on_kvm, on_kvm_that_counts, run, share, until_recorded,
};

use super::events::{EXITS, in_function, record_rounds, samples};

/// The processes that halt and touch memory, in the order of [`TURNS`].
const PIDS: [i32; 3] = [101, 102, 103];

/// Each halt is a sample at the HLT, of the process on whose behalf the kernel has halted.
#[test]
fn every_halt_is_sampled_where_the_vcpu_halts() {
    on_kvm_that_counts(&[EventKind::Halt], || {
        let (samples, contents) = record_rounds("workload=halts", 2, "halt:1", HALT_ROUNDS);
        for (pid, turns) in PIDS.into_iter().zip(TURNS) {
            let made = 2 * HALT_ROUNDS * turns;
            let (found, all) = in_function(&samples, "halt_once", |one| one.pid == pid);
            println!("{pid}: {found} of {made}");
            // Only vCPUs that have finished halt otherwise, and those aren't woken up.
            assert_eq!(all, samples.len() as u64);
            // An interrupt before the HLT prevents the halt: on a slow host that is frequent.
            let expected = made / 2..=made + contents.account.lost;
            assert!(expected.contains(&found), "{pid}: {found} of {made}");
        }
        assert!(samples.iter().all(|sample| sample.mode == Mode::Kernel));
    });
}

/// Samples by tracepoints of KVM are where the guest causes them. However often these are sampled, the guest continues.
#[test]
fn tracepoints_of_kvm_are_sampled_where_they_happen_and_do_not_stop_the_guest() {
    on_kvm_that_counts(&[EventKind::KvmExits, EventKind::PageFaults], || {
        check_page_faults();
        check_exits_to_kvm();
        sample_each_event_as_often_as_possible();
    });
}

/// The first touch of memory is a page fault of the touching process, at the instruction.
fn check_page_faults() {
    let event = "page-faults:1";
    let (samples, contents) = record_rounds("workload=touches", 1, event, TOUCH_ROUNDS);
    for (pid, turns) in PIDS.into_iter().zip(TURNS) {
        let made = TOUCH_ROUNDS * turns;
        let (found, _) = in_function(&samples, "touch_memory", |one| one.pid == pid);
        println!("{pid}: {found} of {made}, {}", contents.account);
        // KVM may handle one again if its tables were changed meanwhile.
        assert!((made..=made + made / 3).contains(&found), "{pid}");
    }
}

/// Exits to kvmprof are exits to KVM, at the same instruction.
fn check_exits_to_kvm() {
    let (samples, contents) = record_rounds("workload=exits", 2, "kvm-exits:1", EXIT_ROUNDS);
    println!("{}", contents.account);
    for (function, pid, _, in_round) in EXITS {
        let made = 2 * EXIT_ROUNDS * in_round;
        let (found, all) = in_function(&samples, function, |one| one.pid == pid);
        println!("{function}: {found} of {made}");
        assert_eq!(found, all, "{function} is of one process");
        // A few more are by interrupts of the host, a few less if the ring was full.
        let least = (made * 19 / 20).saturating_sub(contents.account.lost);
        assert!((least..=made + made / 4).contains(&found), "{function}");
    }
}

/// In guest time, the demo guest's processes have the shares that it has measured itself. While it is halted no guest time
/// passes.
#[test]
fn guest_time_agrees_with_the_guests_own_count() {
    on_kvm_that_counts(&[EventKind::GuestTime], || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let pressure = CpuPressure::begin();
        let event: SamplingEvent = "guest-time:1ms".parse().unwrap();
        let machine = Machine::recorded_by(Boot::Demo, 2, Clock::default(), Some(event), &path);
        until_recorded(&machine.connect(), 2000);
        let cycles = machine.truth().cycles();
        machine.stop();
        let (samples, contents) = samples(&path);
        let counts = counts_of_rows(&samples, 0);
        let whole = samples.len() as u64;
        let sampled = Sampled::new(whole, 0, contents.account.lost, &pressure);
        assert_rows(counts, cycles, |row| row.mode != GuestMode::Idle, sampled);
        let halted = samples.iter().filter(|sample| sample.mode == Mode::Idle);
        let halted = share(halted.count() as u64, whole);
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

/// All that exist here, one after the other.
fn sample_each_event_as_often_as_possible() {
    let boot = Boot::Test("workload=endless-exits");
    let machine = Machine::unwatched(boot, 2);
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
        println!("{}: {:?}", kind.name(), until_recorded(&connection, 0));
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
