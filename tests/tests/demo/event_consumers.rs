//! pcs, prf and profil with an event as the source of ticks: they show who causes it.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PCS_GETHZ;
use kvmprof_abi::prf::ALL_VCPUS;
use kvmprof_abi::recorder::{EVENT_EXITS, REC_EVENT, REC_START, STACK_KERNEL};
use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, RemoteDevice};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_test_guest::IMAGE;
use kvmprof_tests::{
    Boot, Clock, Guest, Machine, Pcs, Prf, errno_of, on_kvm, run, share, standard_error, until,
};

/// A round of `endless-exits`: the function, its process and the number of exits.
const ROUND: [(&str, i32, u64); 4] = [
    ("exit_by_port_write", 101, 4),
    ("exit_by_port_read", 102, 3),
    ("exit_by_mmio_read", 103, 2),
    ("exit_by_mmio_write", 201, 1),
];
const EXITS: u64 = 10;

fn machine() -> Machine {
    let boot = Boot::Test("workload=endless-exits");
    let machine = Machine::start_with_ports(boot, 2, Clock::default(), GuestAccess::None);
    machine.until_rounds(10, || {});
    machine
}

fn start(recorder: &RemoteDevice, period: i64) -> Result<(), ClientError> {
    recorder
        .ioctl_with(REC_EVENT, period, &EVENT_EXITS.to_le_bytes(), 0)
        .unwrap();
    recorder.ioctl(REC_START, STACK_KERNEL).map(|_| ())
}

fn recorder(machine: &Machine) -> RemoteDevice {
    machine.connect().open(device::RECORDER, 0).unwrap()
}

/// Every exit makes a tick, so that a share differs only by the incomplete rounds.
fn check_share(what: &str, count: u64, of_round: u64, all: u64) {
    let (own, seen) = (share(of_round, EXITS), share(count, all));
    println!("{what}: {count} of {all}, {own} expected");
    let allowed = 3.0 * standard_error(own, all) + 0.005;
    assert!((own - seen).abs() < allowed, "{what} {own} {seen}");
}

/// prf counts each of them, though its own rate is 100 Hz.
#[test]
fn prf_counts_the_exits_by_function() {
    on_kvm(|| {
        let machine = machine();
        let recorder = recorder(&machine);
        start(&recorder, 1).unwrap();
        let connection = machine.connect();
        let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
        let mut functions: Vec<(u64, u64)> = ROUND[1..]
            .iter()
            .map(|(function, _, of_round)| (IMAGE.symbol(function).unwrap().address, *of_round))
            .collect();
        functions.sort_unstable();
        let addresses = functions.iter().map(|(address, _)| *address);
        let addresses: Vec<u64> = std::iter::once(0).chain(addresses).collect();
        prf.load(&addresses);
        prf.set(1);
        let counts = until("prf has counted", || {
            let counts = prf.counts();
            (counts.sum() >= 4000).then_some(counts)
        });
        let all = counts.sum();
        check_share("user", counts.user, ROUND[0].2, all);
        for ((_, of_round), count) in functions.into_iter().zip(&counts.counters[1..]) {
            check_share("kernel", *count, of_round, all);
        }
        assert_eq!((counts.counters[0], counts.idle), (0, 0));
        recorder.close().unwrap();
        let later = until("prf goes on", || {
            let later = prf.counts().sum();
            (later >= all + 1000).then_some(later)
        });
        prf.set(0);
        assert!(prf.counts().sum() >= later);
        machine.stop();
    });
}

/// Consumers of the clock's ticks keep them: an event has to wait for them, and a rate for an
/// event.
#[test]
fn an_event_starts_after_consumers_of_the_clock() {
    on_kvm(|| {
        let boot = Boot::Test("workload=endless-exits");
        let guest = Guest::start(boot, ["--hz", "1000"]);
        let connection = guest.connect();
        let recorder = connection.open(device::RECORDER, 0).unwrap();
        let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
        prf.load(&[0, 0x20_0000, 0x30_0000]);
        prf.set(1);
        assert_eq!(errno_of(start(&recorder, 1)), Errno::EBUSY);
        prf.set(0);
        let pcs = Pcs::open(guest.connect()).unwrap();
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 1000);
        assert_eq!(errno_of(start(&recorder, 1)), Errno::EBUSY);
        pcs.device.close().unwrap();
        start(&recorder, 1).unwrap();

        // Programs without knowledge of events say what they have.
        let out = guest.folder().join("samples");
        let out = out.to_str().unwrap();
        let ran = guest.command("getpc", &["--all", "0.5", "--output", out]);
        assert_eq!(ran.status, 0, "{ran:?}");
        let ran = run(["pcstat", out]);
        assert!(
            ran.stdout.contains("none, an event makes the ticks"),
            "{ran:?}"
        );
        let ran = guest.command("getpc", &["--all", "0.5", "--hz", "100", "--output", out]);
        ran.assert_refused(1, &["an event makes the ticks", "EBUSY"]);
        let ran = guest.command(
            "pcsample",
            &["--pid", "101", "--nsamples", "100", "--seconds", "5"],
        );
        assert!(ran.stdout.contains("ticks are every exit"), "{ran:?}");
        drop(recorder);
        guest.stop();
    });
}
