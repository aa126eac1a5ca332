//! Every tick is accounted for, exactly, at every moment.

use kvmprof_abi::pcs::{PCS_SETBSIZE, PCS_SETHZ, PCS_STOP, PROF_ALL, PROF_KERNEL};
use kvmprof_client::Connection;
use kvmprof_tests::{Accounts, Boot, Guest, Pcs, Recorded, clocks_for_demo, on_kvm, until};

/// Checks the accounts in each phase of an open.
const LOOKS: usize = 40;

/// Reads the ledger until it has changed this often, and checks it each time.
fn watch(connection: &Connection, mut between: impl FnMut()) {
    let mut seen = 0;
    let mut last = None;
    until("the account has moved often enough", || {
        between();
        let accounts = Accounts::of(connection);
        accounts.check();
        if last.replace(accounts.pcs.ticks) != Some(accounts.pcs.ticks) {
            seen += 1;
        }
        (seen >= LOOKS).then_some(())
    });
}

/// Without a reader, with one, after a stop, and after a close: clock and consumer balance, and agree.
#[test]
fn accounts_balance_at_every_moment() {
    on_kvm(|| {
        for (clock, cpus) in clocks_for_demo().zip(["1", "2"]) {
            let options = ["--clock", clock, "--hz", "1000", "--cpus", cpus];
            let guest = Guest::start(Boot::Demo, options);
            let witness = guest.connect();
            let mut pcs = guest.open();
            watch(&witness, || ());
            pcs.ioctl(PROF_KERNEL, 0);
            watch(&witness, || pcs.read_available());
            pcs.ioctl(PROF_ALL, 0);
            watch(&witness, || pcs.read_available());
            // A reader that stalls, then continues.
            pcs.stall_until("samples are lost", |ledger| ledger.lost > 50);
            watch(&witness, || ());
            watch(&witness, || pcs.read_available());
            pcs.ioctl(PCS_STOP, 0);
            let stopped = Accounts::of(&witness);
            stopped.check();
            assert_eq!(stopped.clock.ticks, stopped.pcs.ticks);
            let recorded = pcs.drain();
            assert_eq!(recorded.accounts.pcs.ticks, stopped.pcs.ticks);

            let pcs = guest.open();
            pcs.ioctl(PROF_ALL, 0);
            watch(&witness, || ());
            pcs.device.close().unwrap();
            let closed = Accounts::of(&witness);
            closed.check();
            assert!(closed.pcs.discarded > 0, "{closed:?}");
            let added = closed.clock.since(&recorded.accounts.clock);
            assert_eq!(added.ticks, closed.pcs.ticks);
            guest.stop();
        }
    });
}

/// Relations between an open's accounts; `before` was taken before its first PROF_*.
fn check_open(before: &Accounts, recorded: &Recorded) {
    let clock = recorded.accounts.clock.since(&before.clock);
    let (earlier, ledger) = (before.pcs, recorded.status.ledger);
    assert_eq!(clock.ticks, ledger.ticks - earlier.ticks);
    assert_eq!(clock.stolen, ledger.stolen - earlier.stolen);
    // Ticks lost before the first PROF_* are among the ungathered, and samples that found no buffer free among the lost.
    let ungathered_or_lost = ledger.lost - earlier.lost + ledger.ungathered - earlier.ungathered;
    assert!(ungathered_or_lost >= clock.lost, "{clock:?} {ledger:?}");
    assert_eq!(
        clock.sampled + clock.idle + clock.lost,
        ledger.recorded + ledger.merged + ungathered_or_lost,
        "{clock:?} {ledger:?}"
    );
}

fn record(pcs: &mut Pcs, ticks: u64) {
    pcs.ioctl(PCS_SETBSIZE, 65_536);
    pcs.ioctl(PROF_ALL, 0);
    pcs.read_ticks(ticks);
}

/// Over a whole open the clock and its consumer count the same ticks, for any source and rate.
#[test]
fn clock_and_consumer_agree_over_an_open() {
    on_kvm(|| {
        for clock in clocks_for_demo() {
            let jitter = (clock == "thread").then_some("--jitter");
            let options = ["--clock", clock, "--cpus", "2"].into_iter().chain(jitter);
            let guest = Guest::start(Boot::Demo, options);
            for (hz, ticks) in [(100, 60), (1000, 400), (10_000, 2000)] {
                let mut pcs = guest.open();
                // At the rate that the guest was started with, some ticks may have passed.
                let before = Accounts::of(&pcs.connection);
                before.check();
                pcs.ioctl(PCS_SETHZ, hz);
                record(&mut pcs, ticks);
                let recorded = pcs.stop();
                check_open(&before, &recorded);
                println!("{clock} {hz} Hz: {:?}", recorded.status.ledger);
            }
            guest.stop();
        }
    });
}

/// Ticks for which a halted vCPU wasn't woken up are counted when a client requests the final account.
#[test]
fn a_halted_guest_is_accounted_for() {
    on_kvm(|| {
        for clock in clocks_for_demo() {
            let boot = Boot::Test("workload=halt");
            let options = ["--clock", clock, "--hz", "1000", "--cpus", "2"];
            let guest = Guest::start(boot, options);
            let witness = guest.connect();
            let mut pcs = guest.open();
            let before = Accounts::of(&witness);
            pcs.ioctl(PROF_ALL, 0);
            watch(&witness, || pcs.read_available());
            pcs.read_ticks(4000);
            let recorded = pcs.stop();
            check_open(&before, &recorded);
            guest.stop();
        }
    });
}
