//! The counters of single processes, compared with the guest's own counts.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::pmc::{Call, CounterId, Function, PMC_ACCOUNT};
use kvmprof_demo_guest::{Mode, Row, rows};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_recording::ClockLedger;
use kvmprof_recording::counters::Counters;
use kvmprof_test_guest::{EXIT_ROUNDS, Exits};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Machine, Pmc, Sampled, assert_share, count_of, errno_of, on_kvm,
    pmc_call, sampling_rate, share, until,
};

/// The workload `exits`, on two vCPUs, before it has begun.
fn held_guest(hz: u32) -> Machine {
    let clock = Clock {
        hz,
        source: ClockSource::Thread,
        jitter: false,
    };
    Machine::start(Boot::Test("workload=exits"), 2, clock)
}

/// Lets the guest run until it has made all its exits. Returns their counts.
fn run_to_its_end(machine: &Machine) -> Vec<Exits> {
    let pcs = machine.open();
    pcs.ioctl(PROF_ALL, 0);
    let exits = until("the guest is done", || {
        let counters = machine.counters();
        let all = counters.iter().all(|one| one.rounds == EXIT_ROUNDS);
        all.then(|| counters.iter().map(|one| one.exits).collect())
    });
    pcs.device.close().unwrap();
    exits
}

/// The counter of each kind of exits, the process that the workload makes them for, and its own count.
fn exit_rows(exits: &[Exits]) -> [(CounterId, i32, u64); 4] {
    let sum = |count: fn(&Exits) -> u64| exits.iter().map(count).sum();
    [
        (CounterId::PortWrites, 101, sum(|vcpu| vcpu.port_writes)),
        (CounterId::PortReads, 102, sum(|vcpu| vcpu.port_reads)),
        (CounterId::MmioReads, 103, sum(|vcpu| vcpu.mmio_reads)),
        (CounterId::MmioWrites, 201, sum(|vcpu| vcpu.mmio_writes)),
    ]
}

const PROCESSES: [i32; 4] = [101, 102, 103, 201];

/// No exit is missing or counted for another process.
#[test]
fn every_exit_is_counted_for_its_process() {
    on_kvm(|| {
        let machine = held_guest(100);
        let pmc = Pmc::open(&machine.connect());
        let kinds = exit_rows(&[]).map(|(counter, ..)| counter);
        pmc.account(&[&kinds[..], &[CounterId::Exits]].concat());
        let exits = run_to_its_end(&machine);
        let document = pmc.document();
        for (counter, pid, expected) in exit_rows(&exits) {
            assert!(expected > 0);
            for other in PROCESSES {
                let count = count_of(&document, other, counter);
                let expected = if other == pid { expected } else { 0 };
                assert_eq!(count, expected, "{} of {other}", counter.name());
            }
        }
        // KVM's own count includes them.
        for (_, pid, expected) in exit_rows(&exits) {
            let count = count_of(&document, pid, CounterId::Exits);
            assert!(count * 100 >= expected * 90, "{count} {expected} {pid}");
        }
        machine.stop();
    });
}

/// There is no clock and no tick: only exits are counted.
#[test]
fn exits_are_counted_without_a_clock() {
    on_kvm(|| {
        let boot = Boot::Test("workload=endless-exits");
        let machine = Machine::start_with_ports(boot, 2, Clock::default(), GuestAccess::None);
        machine.until_rounds(10, || {});
        let pmc = Pmc::open(&machine.connect());
        let kinds = exit_rows(&[]).map(|(counter, ..)| counter);
        pmc.account(&kinds);
        let writes = |document: &Counters| count_of(document, 201, CounterId::MmioWrites);
        let document = until("there are enough rounds", || {
            let document = pmc.document();
            (writes(&document) >= 100).then_some(document)
        });
        assert!(!machine.status().clock.running);
        let rounds = writes(&document);
        for ((counter, pid, _), in_round) in exit_rows(&[]).into_iter().zip([4, 3, 2, 1]) {
            let count = count_of(&document, pid, counter);
            // Each vCPU's first and last round may be incomplete.
            let allowed = 4 * in_round;
            let expected = rounds * in_round;
            assert!(
                count.abs_diff(expected) <= allowed,
                "{pid}: {count} {expected}"
            );
        }
        machine.stop();
    });
}

/// The process during whose time the guest does what it counts in `row`.
fn process_of(row: &Row) -> Option<i32> {
    // The timer's interrupt has work to do in slices of the weaver alone.
    const WEAVER: i32 = 101;
    match row.mode {
        Mode::Interrupt => Some(WEAVER),
        _ => row.pid,
    }
}

/// Processor time is an estimate by ticks: each process has its share by the guest's own count.
#[test]
fn processor_time_agrees_with_the_guests_count() {
    on_kvm(|| {
        const TICKS: u64 = 3000;
        let clock = Clock {
            hz: sampling_rate(1000),
            source: ClockSource::Thread,
            jitter: true,
        };
        let machine = Machine::start(Boot::Demo, 1, clock);
        let pcs = machine.open();
        pcs.ioctl(PROF_ALL, 0);
        machine.truth();
        let pressure = CpuPressure::begin();
        let pmc = Pmc::open(&machine.connect());
        pmc.account(&[CounterId::CpuTime, CounterId::Ticks]);
        let before = (machine.truth(), ledger(&machine));
        let document = until("enough ticks have found a process", || {
            let document = pmc.document();
            let ticks = PROCESSES.map(|pid| count_of(&document, pid, CounterId::Ticks));
            (ticks.iter().sum::<u64>() >= TICKS).then_some(document)
        });
        let after = (machine.truth(), ledger(&machine));
        let cycles = after.0.cycles_since(&before.0);
        let of_process = |pid| {
            let rows = rows().iter().zip(cycles);
            let rows = rows.filter(|(row, _)| process_of(row) == Some(pid));
            rows.map(|(_, cycles)| cycles).sum::<u64>()
        };
        let time = |pid| count_of(&document, pid, CounterId::CpuTime);
        let [expected, observed] =
            [PROCESSES.map(of_process), PROCESSES.map(time)].map(|all| (all, all.iter().sum()));
        let between = after.1.since(&before.1);
        let sampled = Sampled::new(TICKS, between.stolen, between.lost, &pressure);
        for (index, pid) in PROCESSES.into_iter().enumerate() {
            let part = |(all, sum): ([u64; 4], u64)| share(all[index], sum);
            let what = format!("processor time of {pid}");
            assert_share(&what, part(observed), part(expected), sampled);
        }
        pcs.device.close().unwrap();
        machine.stop();
    });
}

/// The overflow of a counter makes the ticks, without another consumer; pcs then shows which process causes the
/// event.
#[test]
fn profiling_by_a_counter_shows_who_causes_its_event() {
    on_kvm(|| {
        let boot = Boot::Test("workload=endless-exits");
        let machine = Machine::start_with_ports(boot, 2, Clock::default(), GuestAccess::None);
        let pmc = Pmc::open(&machine.connect());
        let profiling = |function, counter, reset_value| Call {
            reset_value,
            ..pmc_call(function, 0, counter)
        };
        let (start, stop) = (Function::StartProfiling, Function::StopProfiling);
        let writes = profiling(start, CounterId::MmioWrites, 2);
        let none = profiling(start, CounterId::MmioWrites, 0);
        assert_eq!(pmc.refused(&none), Errno::EINVAL);
        let cannot = profiling(start, CounterId::Emulated, 2);
        assert_eq!(pmc.refused(&cannot), Errno::ENODEV);
        assert_eq!(pmc.call(&writes), (0, 0));
        assert_eq!(pmc.refused(&writes), Errno::EINPROGRESS);
        let other = profiling(start, CounterId::PortReads, 2);
        assert_eq!(pmc.refused(&other), Errno::EBUSY);
        let clock = until("the event makes ticks", || {
            let clock = machine.status().clock;
            (clock.ledger.ticks > 10).then_some(clock)
        });
        assert_eq!(clock.event.as_deref(), Some("mmio-write:2"));
        let mut pcs = machine.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(500);
        let recorded = pcs.stop();
        let mut samples = recorded.samples();
        assert!(samples.all(|sample| sample.pid == 201), "only it writes");
        assert_eq!(pmc.call(&profiling(stop, CounterId::MmioWrites, 0)), (0, 0));
        let stopped = profiling(stop, CounterId::MmioWrites, 0);
        assert_eq!(pmc.refused(&stopped), Errno::ENXIO);
        assert_eq!(machine.status().clock.event, None);
        machine.stop();
    });
}

/// Each client's counts take memory, which is limited.
#[test]
fn no_more_than_32_clients_have_all_processes_counted() {
    on_kvm(|| {
        let machine = held_guest(100);
        let connection = machine.connect();
        let mut clients: Vec<Pmc> = (0..33).map(|_| Pmc::open(&connection)).collect();
        let last = clients.pop().unwrap();
        for client in &clients {
            client.account(&[CounterId::Ticks]);
        }
        let refused = last.0.ioctl(PMC_ACCOUNT, CounterId::Ticks.bit().into());
        assert_eq!(errno_of(refused), Errno::ENOMEM);
        // A client that already counts may count something else.
        clients[0].account(&[CounterId::Exits]);
        clients.pop().unwrap().0.close().unwrap();
        last.account(&[CounterId::Ticks]);
        let wrong = last.0.ioctl(PMC_ACCOUNT, 1 << 19);
        assert_eq!(errno_of(wrong), Errno::EINVAL);
        machine.stop();
    });
}

/// The clock's account.
fn ledger(machine: &Machine) -> ClockLedger {
    machine.status().clock.ledger
}
