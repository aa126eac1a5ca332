//! Hostile guests, and guests that are within an exit at every tick.

use kvmprof_abi::pcs::{PCS_SETBSIZE, PROF_ALL, PROF_GROUP, PROF_KERNEL};
use kvmprof_abi::wire::device;
use kvmprof_recording::file::Recording;
use kvmprof_tests::{Accounts, Boot, Clock, Guest, Machine, on_kvm};

/// Circular page tables, invalid pointers and absurd counts during every kind of introspection.
#[test]
fn a_hostile_guest_harms_nobody() {
    on_kvm(|| {
        const ROUNDS: u64 = 150;
        let machine = Machine::start(Boot::Test("workload=hostile"), 2, Clock::at(2000));
        let witness = machine.connect();
        let mut pcs = machine.open();
        pcs.ioctl(PCS_SETBSIZE, 65_536);
        pcs.ioctl(PROF_ALL, 0);
        pcs.ioctl(PROF_GROUP, 200);
        pcs.ioctl(PROF_KERNEL, 0);
        pcs.list(&[5, 0, -1, i32::MIN, i32::MAX, 101]).unwrap_err();
        pcs.list(&[3, 1, i32::MAX, 101]).unwrap();
        machine.until_rounds(ROUNDS, || {
            pcs.read_available();
            Accounts::of(&witness).check();
            let names = witness.snapshot(device::PROCESSES, 1 << 24);
            assert!(names.is_ok(), "{:?}", names.err());
        });
        let recorded = pcs.stop();
        assert!(recorded.samples().count() > 100);
        machine.stop();
    });
}

/// The same from outside, with every client.
#[test]
fn a_hostile_guest_is_ended_like_any_other() {
    on_kvm(|| {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("hostile.kvmprof");
        let recording = path.to_str().expect("a path in UTF-8");
        let guest = Guest::start(
            Boot::Test("workload=hostile"),
            ["--hz", "10000", "--cpus", "2", "--record", recording],
        );
        for (command, argument) in [(PROF_ALL, 0), (PROF_KERNEL, 0), (PROF_GROUP, 1)] {
            let mut pcs = guest.open();
            pcs.ioctl(command, argument);
            pcs.read_ticks(1000);
            pcs.stop();
            assert_eq!(guest.command("status", &[]).status, 0);
        }
        guest.stop();
        let recording = Recording::open(&path).expect("a recording");
        let contents = recording.read(|_, _| {}).expect("whole blocks");
        assert_eq!(contents.closed, Some(contents.account));
        assert!(contents.account.samples > 100);
    });
}

/// A tick never falls into an unfinished exit: every value that the guest reads is right.
#[test]
fn no_tick_falls_into_an_unfinished_exit() {
    on_kvm(|| {
        const TICKS: u64 = 500;
        for (workload, rounds) in [
            ("mmio", 300),
            ("string-io", 30),
            ("pio", 3000),
            ("kernel-pio", 2000),
        ] {
            let clock = Clock::jittered(5000);
            let words = format!("workload={workload}");
            let machine = Machine::start(Boot::Test(&words), 2, clock);
            let mut pcs = machine.open();
            pcs.ioctl(PROF_ALL, 0);
            pcs.read_ticks(TICKS);
            machine.until_rounds(rounds, || pcs.read_available());
            pcs.stop();
            machine.stop();
        }
    });
}
