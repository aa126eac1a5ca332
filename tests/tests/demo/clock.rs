//! The clock: no guest can mask it, it isn't biased, and an idle clock costs nothing.

use std::process;
use std::time::{Duration, Instant};

use kvmprof_abi::pcs::{BUF_INCR, PCS_SETBSIZE, PROF_ALL, kind};
use kvmprof_demo_guest::{Mode, ROWS, function_at, rows};
use kvmprof_profiling::clock::ClockSource;
use kvmprof_tests::{
    Accounts, Boot, Clock, CpuPressure, Guest, Machine, Recorded, Sampled, assert_share,
    clocks_for_demo, in_lab, is_kernel_clock_for_demo, on_kvm, share, threads, ticks_by_kind,
    until,
};

const ROOM: i64 = 65_536;

/// Records `ticks` of a running guest; with its own count of that time, in TSC cycles by row, and the share of it for which its only vCPU's thread slept.
fn record(machine: &Machine, ticks: u64) -> (Recorded, [u64; ROWS], f64) {
    let pcs = machine.open();
    pcs.ioctl(PROF_ALL, 0);
    machine.truth();
    pcs.device.close().unwrap();
    let mut pcs = machine.open();
    pcs.ioctl(BUF_INCR, 7);
    pcs.ioctl(PCS_SETBSIZE, ROOM);
    pcs.ioctl(PROF_ALL, 0);
    let before = (machine.truth(), Instant::now(), vcpu_awake());
    pcs.read_ticks(ticks);
    let after = (machine.truth(), before.1.elapsed(), vcpu_awake());
    let cycles = after.0.cycles_since(&before.0);
    let awake = (after.2 - before.2).div_duration_f64(after.1);
    (pcs.stop(), cycles, 1.0 - awake)
}

/// How long the only vCPU's thread has run, or waited for a processor.
fn vcpu_awake() -> Duration {
    let vcpus = threads(process::id(), "vcpu 0");
    let times = vcpus.iter().map(|thread| thread.times);
    times
        .map(|times| Duration::from_nanos(times.run + times.delay))
        .sum()
}

/// The idle share of the samples against the guest's own, for a guest that is busy for `duty`
/// percent of each period.
fn check_duty(duty: u32, period: u32, clock: Clock) {
    const TICKS: u64 = 1400;
    let words = format!("workload=duty duty={duty} period={period}");
    let machine = Machine::start(Boot::Test(&words), 1, clock);
    let pressure = CpuPressure::begin();
    let (recorded, cycles, slept) = record(&machine, TICKS);
    let idle = rows()
        .iter()
        .position(|row| row.mode == Mode::Idle)
        .unwrap();
    let expected = share(cycles[idle], cycles.iter().sum());
    let kinds = ticks_by_kind(recorded.records());
    let observed = share(
        kinds.get(&kind::IDLE).copied().unwrap_or(0),
        recorded.ticks(),
    );
    let ledger = recorded.status.ledger;
    let mut sampled = Sampled::new(recorded.ticks(), ledger.stolen, ledger.lost, &pressure);
    // The guest looks at its clock before it halts and after it was woken up, and takes for sleep what its vCPU's thread does before it sleeps and before the guest goes on:
    // exits, KVM's look whether an interrupt comes at once, and waits for a processor.
    sampled.blur += (expected - slept).max(0.0);
    let what = format!("idle at {duty} % of {period} us, {clock:?}");
    if in_lab() {
        // Its timers and wake-ups are later than these stretches are long.
        println!("{what}: {observed:.3}, {expected:.3} expected; only looked for in the lab");
        assert!(
            observed < 1.0 && (observed > 0.0 || expected < 0.05),
            "{what}"
        );
    } else {
        assert_share(&what, observed, expected, sampled);
    }
    machine.stop();
}

/// With a period that divides none of those here, so that the phases of both drift, and with the random phase, whose purpose is work in step with the
/// clock. There the exits and wake-ups of each round are short compared with the period, on slow hosts too: their time counts neither as the guest's work nor
/// as its sleep for certain.
#[test]
fn idle_time_is_right() {
    on_kvm(|| {
        for (duty, period, clock) in [
            (5, 2000, Clock::at(997)),
            (20, 2000, Clock::at(997)),
            (50, 2000, Clock::at(997)),
            (80, 2000, Clock::at(997)),
            (95, 2000, Clock::at(997)),
            (20, 4000, Clock::jittered(250)),
            (50, 4000, Clock::jittered(250)),
            (80, 4000, Clock::jittered(250)),
        ] {
            check_duty(duty, period, clock);
        }
        if is_kernel_clock_for_demo() {
            let source = ClockSource::Kernel;
            for (duty, period) in [(20, 300), (20, 2000), (80, 2000), (50, 33_000)] {
                check_duty(
                    duty,
                    period,
                    Clock {
                        source,
                        ..Clock::at(997)
                    },
                );
            }
        }
    });
}

/// A halted vCPU's ticks all count as idle, and it isn't woken up for them.
#[test]
fn a_halted_guest_sleeps_through_its_ticks() {
    on_kvm(|| {
        clocks_for_demo().for_each(|clock| drop(check_sleep(clock)));
    });
}

/// Returns the name of the way in which the ticks of halted vCPUs are counted.
pub fn check_sleep(clock: &str) -> String {
    const READ: u64 = 63 * 100;
    let options = ["--clock", clock, "--hz", "2000"];
    let guest = Guest::start(Boot::Test("workload=halt"), options);
    let pcs = guest.open();
    let halted_ticks = guest.status().clock.halted_ticks;
    pcs.ioctl(PROF_ALL, 0);
    until("the guest is halted", || {
        let accounts = Accounts::of(&pcs.connection);
        (accounts.clock.idle > 0 || halted_ticks != "all at the next wake-up").then_some(())
    });
    let before = &threads(guest.pid(), "vcpu")[0];
    // A buffer full of idle counts. Asking for the account would wake the vCPU up.
    let (first, second) = (
        pcs.device.read(1024).unwrap(),
        pcs.device.read(1024).unwrap(),
    );
    assert_eq!((first.len(), second.len()), (1024, 1024));
    let after = &threads(guest.pid(), "vcpu")[0];
    let wakeups = after.voluntary_switches - before.voluntary_switches;
    let ledger = pcs.status().ledger;
    assert!(ledger.merged >= READ, "{ledger:?}");
    assert!(ledger.recorded * 20 < ledger.merged, "{ledger:?}");
    println!("{wakeups} wake-ups, {ledger:?}");
    if halted_ticks == "all at the next wake-up" {
        assert!(wakeups < READ / 10, "{wakeups} wake-ups");
    } else {
        kvmprof_tests::not_run("the number of wake-ups: this host refuses perf_event_open");
    }
    guest.stop();
    halted_ticks
}

/// Without a consumer no clock runs: nothing is counted, and no thread wakes up.
#[test]
fn without_a_consumer_there_is_no_clock() {
    on_kvm(|| {
        const ROUNDS: u64 = 50_000_000;
        let machine = Machine::start(Boot::Test("workload=spin"), 1, Clock::at(10_000));
        let witness = machine.connect();
        let pcs = machine.open();
        pcs.ioctl(PROF_ALL, 0);
        machine.until_rounds(ROUNDS, || ());
        pcs.device.close().unwrap();
        let closed = Accounts::of(&witness);
        assert!(!closed.running && closed.clock.ticks > 0);
        let wakeups = || threads(std::process::id(), "events")[0].voluntary_switches;
        let before = wakeups();
        machine.until_rounds(ROUNDS, || ());
        // It may still have had an answer to send.
        assert!(wakeups() - before < 10, "the event thread sleeps");
        assert_eq!(Accounts::of(&witness), closed);
        machine.stop();
    });
}

/// `--wait`: no vCPU runs before a client gathers, and then the first instructions are sampled.
#[test]
fn wait_holds_the_guest_until_a_client_gathers() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--wait", "--hz", "10000"]);
        let witness = guest.connect();
        let mut pcs = guest.open();
        assert!(Accounts::of(&witness).held);
        assert_eq!(guest.console(), "");
        assert_eq!(pcs.status().ledger.recorded, 0);
        pcs.ioctl(PCS_SETBSIZE, ROOM);
        pcs.ioctl(PROF_ALL, 0);
        assert!(!Accounts::of(&witness).held);
        pcs.read_ticks(3000);
        let recorded = pcs.stop();
        let first = recorded.samples().next().unwrap();
        println!("first: {first:?} in {:?}", function_at(first.pc));
        // The guest's start-up: interrupts are off, and there is no process yet.
        assert_eq!(
            (first.kind, first.sspace),
            (kind::KERNEL, 0xf0),
            "{first:?}"
        );
        assert!(first.pid <= 0, "{first:?}");
        assert!(function_at(first.pc).is_some(), "{first:?}");
        assert_ne!(guest.console(), "");
        guest.stop();
    });
}
