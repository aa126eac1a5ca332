//! The counters of a running guest and of single processes, compared with the guest's own counts.

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::pmc::{CounterId, PMC_ACCOUNT};
use kvmprof_abi::wire::device;
use kvmprof_demo_guest::{Mode, Row, rows};
use kvmprof_recording::ClockLedger;
use kvmprof_recording::counters::Counters;
use kvmprof_test_guest::{EXIT_ROUNDS, Exits};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Pmc, Ran, Sampled, assert_share, count_of, errno_of,
    on_kvm, run, share, until,
};

/// The workload `exits`, on two vCPUs. The guest is held until a client gathers.
fn held_guest() -> Machine {
    Machine::start(Boot::Test("workload=exits"), 2, Clock::at(100))
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

/// No exit is missing or counted for another vCPU or process. In addition to those that it counts, the guest has only
/// written its greeting, on the first vCPU.
#[test]
fn every_exit_is_counted_for_its_vcpu_and_process() {
    on_kvm(|| {
        let machine = held_guest();
        let connection = machine.connect();
        let pmc = Pmc::open(&connection);
        let kinds = exit_rows(&[]).map(|(counter, ..)| counter);
        pmc.account(&[&kinds[..], &[CounterId::Exits]].concat());
        let pcs = machine.open();
        pcs.ioctl(PROF_ALL, 0);
        let exits: Vec<Exits> = until("the guest is done", || {
            let counters = machine.counters();
            let all = counters.iter().all(|one| one.rounds == EXIT_ROUNDS);
            all.then(|| counters.iter().map(|one| one.exits).collect())
        });
        let document = pmc.document();
        for (counter, pid, expected) in exit_rows(&exits) {
            assert!(expected > 0);
            for other in PROCESSES {
                let count = count_of(&document, other, counter);
                let expected = if other == pid { expected } else { 0 };
                assert_eq!(count, expected, "{} of {other}", counter.name());
            }
            // KVM's own count includes them.
            let count = count_of(&document, pid, CounterId::Exits);
            assert!(count * 100 >= expected * 90, "{count} {expected} {pid}");
        }
        // It prints that it has finished before it halts.
        let counted = until("all vCPUs are halted", || {
            let document = connection.snapshot(device::PMC, 1 << 20).unwrap();
            let counters = Counters::from_json(&document).unwrap().counters;
            let vcpus = counters.into_iter().map(|one| (one.name, one.vcpus));
            let counted: BTreeMap<String, Vec<u64>> = vcpus.collect();
            let has_halted = counted["halts"].iter().all(|halts| *halts > 0);
            has_halted.then_some(counted)
        });
        for (vcpu, exits) in exits.iter().enumerate() {
            let counted = |name: &str| counted[name][vcpu];
            let [writes, others @ ..] = exit_rows(&[*exits]);
            for (counter, _, expected) in others {
                assert_eq!(counted(counter.name()), expected);
            }
            let greeting = counted("port-writes") - writes.2;
            assert!(greeting < 100 && (vcpu == 0 || greeting == 0), "{greeting}");
            let all = others.iter().map(|other| other.2).sum::<u64>() + writes.2;
            assert!(counted("exits") >= all && counted("cpu-time") > 0);
        }
        pcs.device.close().unwrap();
        machine.stop();
    });
}

/// There is no clock and no tick: only exits are counted.
#[test]
fn exits_are_counted_without_a_clock() {
    on_kvm(|| {
        let machine = Machine::unwatched(Boot::Test("workload=endless-exits"), 2);
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
        let machine = Machine::start(Boot::Demo, 1, Clock::jittered(1000));
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

/// Each client's counts take memory, which is limited.
#[test]
fn no_more_than_32_clients_have_all_processes_counted() {
    on_kvm(|| {
        let machine = held_guest();
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

fn command(guest: &Guest, words: &[&str]) -> Ran {
    let socket = guest.socket();
    run([&["pmc"], words, &["--socket", socket.to_str().unwrap()]].concat())
}

/// A profile by exits shows which processes make them, and in which functions.
#[test]
fn a_profile_by_an_event_shows_who_causes_it() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=kernel-pio"), ["--hz", "0"]);
        let profile = |event| command(&guest, &["profile", event, "--seconds", "0.5"]);
        let writes = profile("port-write:5").quiet();
        assert!(writes.contains("one of every 5 port writes"), "{writes}");
        let functions = writes.split("FUNCTION").nth(1).expect("functions");
        let busiest = functions.lines().nth(1).unwrap_or_default();
        // Other processes write, too, while the guest starts.
        assert!(busiest.contains("write_port_in_kernel"), "{writes}");
        let none = profile("mmio-read:10000000");
        none.assert_refused(1, &["10000000 MMIO reads to one"]);
        guest.stop();
    });
}

/// The command shows them, and what it can't show.
#[test]
fn the_command_lists_and_counts() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let pmc = |words: &[&str]| command(&guest, words);
        let list = pmc(&["list"]).quiet();
        for name in ["cpu-time", "port-writes", "halts"] {
            assert!(list.contains(name), "{list}");
        }
        let of_vcpus = ["--event", "halts,ticks", "--per-vcpu"];
        let stat = pmc(&[&["stat", "--seconds", "0.2"], &of_vcpus[..]].concat()).stdout;
        let names = stat
            .lines()
            .skip(1)
            .map(|line| line.trim().split("  ").next());
        let names: Vec<&str> = names.flatten().take(4).collect();
        assert_eq!(names, ["ticks", "vCPU 0", "halts", "vCPU 0"], "{stat}");
        // On a busy host it may hardly run in such a time.
        let chosen = ["--processes", "--event", "ticks,cpu-time"];
        let chosen = [&["stat", "--seconds", "0.3"][..], &chosen].concat();
        let by_process = until("a process is counted", || {
            Some(pmc(&chosen).stdout).filter(|table| table.contains("weaver"))
        });
        let headings = by_process.lines().next().unwrap_or_default();
        let headings: Vec<&str> = headings.split_whitespace().collect();
        assert_eq!(headings, ["PID", "COMMAND", "TICKS", "CPU-TIME", "ms"]);
        let one = pmc(&["stat", "--seconds", "0.3", "--pid", "101", "--json"]);
        let counted = Counters::from_json(one.stdout.as_bytes()).expect("a document");
        assert!(counted.time > 0);
        let processes = counted.processes.expect("processes");
        assert!(
            processes.iter().all(|process| process.pid == 101),
            "{processes:?}"
        );
        until("processes are counted twice", || {
            let top = pmc(&["top", "--count", "2", "--interval", "0.3"]).quiet();
            assert_eq!(top.matches("in the last").count(), 2);
            (top.matches("COMMAND").count() == 2).then_some(())
        });
        let unknown = pmc(&["stat", "--event", "nonsense"]);
        unknown.assert_refused(2, &["no counter 'nonsense'"]);
        guest.stop();
    });
}
