//! getpc through the socket: reads on one thread, the stop on another, on one connection.

use kvmprof_abi::pcs::{Format, kind};
use kvmprof_tools::device::{DeviceError, Remote};
use kvmprof_tools::getpc::{Plan, fetch_names, run};
use kvmprof_tools::interrupt::Interrupt;
use kvmprof_tools::pcstat::read_profile;

use crate::bench::{Bench, HZ, VCPUS, idle, user};

#[test]
fn getpc_ends_while_its_read_is_blocked_and_has_everything() {
    for format in [Format::Native, Format::Classic] {
        let bench = Bench::start();
        let ticks = [user(7, 100), idle(250), user(9, 50)].concat();
        bench.script(ticks);
        let connection = bench.connect();
        let device = Remote::pcs(&connection).unwrap();
        let plan = Plan {
            all: true,
            format,
            ..Plan::default()
        };
        let interrupt = Interrupt::default();
        let stopper = interrupt.stopper();
        let mut stream = Vec::new();
        let summary = std::thread::scope(|scope| {
            scope.spawn(|| {
                // A full buffer has been read, and the next one never fills.
                bench.until(|state| state.ledger.recorded >= 63);
                stopper.stop();
            });
            let names = &mut || fetch_names(&connection);
            run(&device, &plan, &mut stream, interrupt, names).unwrap()
        });
        assert_eq!((summary.ledger.recorded, summary.ledger.merged), (150, 250));
        let profile = read_profile(&mut &*stream, "the stream", None).unwrap();
        assert_eq!(profile.problems, [] as [String; 0]);
        assert_eq!(
            (profile.format, profile.tally.count(kind::IDLE)),
            (format, 250)
        );
        assert_eq!(profile.processes[&7].user, 100);
        if let Some(pstat) = profile.pstat {
            let status = pstat.status;
            assert_eq!((status.hz, status.vcpus), (HZ, VCPUS.into()));
        }
    }
}

#[test]
fn a_second_getpc_is_told_that_pcs_is_in_use() {
    let bench = Bench::start();
    let connection = bench.connect();
    let first = Remote::pcs(&connection).unwrap();
    let other = bench.connect();
    assert!(matches!(
        Remote::pcs(&other),
        Err(DeviceError::InUse { .. })
    ));
    drop(first);
    assert!(Remote::pcs(&other).is_ok());
}
