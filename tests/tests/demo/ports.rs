//! A guest other than Linux, on the raw port: the test guest speaks the framed protocol and profiles itself.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{Format, PROF_ALL, Status, kind};
use kvmprof_abi::wire::device;
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_test_guest::{Outcome, PortResults, Stage, Step};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Machine, Sampled, assert_share, errno_of, on_kvm, sampling_rate,
    share, until,
};

const BOOT: Boot = Boot::Test("workload=port");
/// Samples in a buffer of 1024 bytes, and buffers that the guest reads before it stops.
const SAMPLES_IN_BUFFER: u64 = 63;
const BUFFERS: u64 = 20;

fn clock() -> Clock {
    Clock::jittered(sampling_rate(500))
}

fn errno(errno: Errno) -> Outcome {
    Outcome::Errno(errno.0)
}

/// Requests are refused as the pages say.
fn check_outcomes(results: &PortResults) {
    for (step, outcome) in [
        (Step::Hello, Outcome::Done),
        (Step::UnknownDevice, errno(Errno::EACCES)),
        (Step::UnknownMinor, errno(Errno::ENXIO)),
        (Step::Status, errno(Errno::EACCES)),
        (Step::Processes, errno(Errno::EACCES)),
        (Step::ReadNothingOpen, errno(Errno::EBADF)),
        (Step::Open, Outcome::Done),
        (Step::OpenAgain, errno(Errno::EBUSY)),
        (Step::Faster, errno(Errno::EPERM)),
        (Step::UnknownCommand, errno(Errno::EINVAL)),
        (Step::TooManyBuffers, errno(Errno::EINVAL)),
        (Step::MoreBuffers, Outcome::Done),
        (Step::ProfAll, Outcome::Done),
        (Step::Read, Outcome::Done),
        (Step::Stop, Outcome::Done),
        (Step::GetStat, Outcome::Done),
        (Step::Close, Outcome::Done),
        (Step::ReadClosed, errno(Errno::EBADF)),
        (Step::PortClose, Outcome::Done),
    ] {
        assert_eq!(results.outcome(step), outcome, "{step:?}: {results:?}");
    }
}

/// The records agree with the account, which balances.
fn check_account(results: &PortResults) -> Status {
    let status = Status::decode(&results.account).unwrap();
    let ledger = status.ledger;
    assert!(ledger.balances(), "{status:?}");
    assert_eq!((ledger.pending, ledger.discarded), (0, 0), "{status:?}");
    let ticks = |kinds: &[u8]| -> u64 {
        let of_kind = |kind: &u8| results.ticks[usize::from(*kind)];
        kinds.iter().map(of_kind).sum()
    };
    let samples = [kind::KERNEL, kind::USER, kind::KERNELI];
    let merged = [kind::IDLE, kind::MKERNEL, kind::MUSER, kind::MKERNELI];
    assert_eq!(ticks(&samples), ledger.recorded, "{results:?}");
    assert_eq!(ticks(&merged), ledger.merged, "{results:?}");
    assert_eq!(
        results.ticks.iter().sum::<u64>(),
        ledger.recorded + ledger.merged,
        "{results:?}"
    );
    assert!(results.lost <= ledger.lost, "{results:?} {status:?}");
    assert_eq!((status.hz, status.vcpus), (clock().hz, 1));
    assert_eq!(status.format, Format::Native);
    status
}

/// The guest's shares of its processes agree with its own schedule: they run only while it gathers.
fn check_shares(machine: &Machine, results: &PortResults, status: &Status, pressure: &CpuPressure) {
    let (others, processes) = results.user.split_last().unwrap();
    assert_eq!(*others, 0, "{results:?}");
    let cycles = machine.truth().cycles();
    let (cycles, _) = cycles.split_at(processes.len());
    let all: u64 = processes.iter().sum();
    let all_cycles: u64 = cycles.iter().sum();
    assert_eq!(all, results.ticks[usize::from(kind::USER)]);
    let sampled = Sampled::new(all, status.ledger.stolen, status.ledger.lost, pressure);
    for (process, (samples, cycles)) in processes.iter().zip(cycles).enumerate() {
        let what = format!("process {process}");
        let (observed, expected) = (share(*samples, all), share(*cycles, all_cycles));
        assert_share(&what, observed, expected, sampled);
    }
}

/// Opens pcs on the raw port while a client of the host has its own open, and has itself profiled.
#[test]
fn a_guest_profiles_itself_on_the_raw_port() {
    on_kvm(|| {
        let machine = Machine::start_with_ports(BOOT, 1, clock(), GuestAccess::All);
        let witness = machine.connect();
        let on_host = machine.open();
        let connected = machine.until_stage(Stage::Connected);
        assert_eq!((connected.vcpus, connected.hz), (1, clock().hz));
        machine.allow(Stage::Connected);
        machine.until_stage(Stage::Open);
        let pressure = CpuPressure::begin();
        assert_eq!(errno_of(witness.open(device::PCS, 0)), Errno::EBUSY);
        on_host.device.close().unwrap();
        machine.allow(Stage::Open);
        machine.until_stage(Stage::Gathered);
        machine.open().device.close().unwrap();
        machine.allow(Stage::Gathered);
        let results = machine.until_stage(Stage::Closed);
        println!("{results:?}");

        check_outcomes(&results);
        assert!(results.buffers >= BUFFERS);
        assert!(results.ticks.iter().sum::<u64>() >= BUFFERS * SAMPLES_IN_BUFFER / 2);
        let status = check_account(&results);
        check_shares(&machine, &results, &status, &pressure);

        let pcs = machine.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.stop();
        machine.stop();
    });
}

/// The host decides what the guest may do.
#[test]
fn the_host_decides_what_a_guest_opens() {
    on_kvm(|| {
        for (access, hello, open) in [
            (GuestAccess::None, Outcome::NoDevice, Outcome::NotTried),
            (GuestAccess::Prf, Outcome::Done, errno(Errno::EACCES)),
            (GuestAccess::Pcs, Outcome::Done, Outcome::Done),
        ] {
            let machine = Machine::start_with_ports(BOOT, 1, clock(), access);
            machine.allow(Stage::Connected);
            let results = until("the guest has tried", || {
                let results = machine.port();
                (results.stage >= Some(Stage::Open)).then_some(results)
            });
            assert_eq!(results.outcome(Step::Hello), hello, "{access:?}");
            assert_eq!(results.outcome(Step::Open), open, "{access:?}");
            // The host's clients aren't affected. If the guest has pcs open, its end closes that too.
            machine.open().device.close().unwrap();
            machine.stop();
        }
    });
}
