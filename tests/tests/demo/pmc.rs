//! The counters of a running guest, compared with the guest's own counts.

use std::ffi::OsStr;

use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_recording::counters::Counters;
use kvmprof_test_guest::EXIT_ROUNDS;
use kvmprof_tests::{Boot, Clock, Guest, Machine, on_kvm, run, until};

const MAX_COUNTERS: usize = 1 << 20;

fn counters(connection: &Connection) -> Counters {
    let document = connection.snapshot(device::PMC, MAX_COUNTERS);
    Counters::from_json(&document.expect("the device pmc")).expect("its document")
}

/// Each vCPU's own counts.
fn vcpus<'a>(counters: &'a Counters, name: &str) -> &'a [u64] {
    let mut all = counters.counters.iter();
    let counter = all.find(|counter| counter.name == name);
    let counter = counter.unwrap_or_else(|| panic!("no counter {name}"));
    assert_eq!(counter.missing, None, "{name}");
    &counter.vcpus
}

/// Each vCPU's exits equal the guest's count; in addition, the guest has only written its greeting, on the first vCPU.
#[test]
fn exits_are_counted_by_kind_and_vcpu() {
    on_kvm(|| {
        let boot = Boot::Test("workload=exits");
        let clock = Clock {
            hz: 100,
            source: ClockSource::Thread,
            jitter: false,
        };
        let machine = Machine::start(boot, 2, clock);
        // The guest is held until a client gathers.
        let pcs = machine.open();
        pcs.ioctl(PROF_ALL, 0);
        let exits = until("the guest is done", || {
            let counters = machine.counters();
            let all = counters.iter().all(|one| one.rounds == EXIT_ROUNDS);
            all.then(|| {
                counters
                    .iter()
                    .map(|counter| counter.exits)
                    .collect::<Vec<_>>()
            })
        });
        // It prints that it has finished before it halts.
        let counters = until("all vCPUs are halted", || {
            let counters = counters(&machine.connect());
            let has_halted = vcpus(&counters, "halts").iter().all(|halts| *halts > 0);
            has_halted.then_some(counters)
        });
        for (vcpu, exits) in exits.iter().enumerate() {
            let counted = |name| vcpus(&counters, name)[vcpu];
            assert_eq!(counted("port-reads"), exits.port_reads);
            assert_eq!(counted("mmio-reads"), exits.mmio_reads);
            assert_eq!(counted("mmio-writes"), exits.mmio_writes);
            let greeting = counted("port-writes") - exits.port_writes;
            assert!(greeting < 100 && (vcpu == 0 || greeting == 0), "{greeting}");
            // KVM has counted at least these.
            let all = [
                exits.port_reads,
                exits.port_writes,
                exits.mmio_reads,
                exits.mmio_writes,
            ];
            assert!(counted("exits") >= all.iter().sum());
            assert!(counted("cpu-time") > 0);
        }
        pcs.device.close().expect("pcs is open");
        machine.stop();
    });
}

/// A profile by exits shows which processes make them, and in which functions.
#[test]
fn a_profile_by_an_event_shows_who_causes_it() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=kernel-pio"), ["--hz", "0"]);
        let socket = guest.socket();
        let socket = socket.to_str().expect("a path");
        let profile = |event: &str| {
            run([
                "pmc",
                "profile",
                event,
                "--socket",
                socket,
                "--seconds",
                "0.5",
            ])
        };
        let writes = profile("port-write:5");
        assert_eq!((writes.status, writes.stderr.as_str()), (0, ""));
        assert!(
            writes.stdout.contains("one of every 5 port writes"),
            "{}",
            writes.stdout
        );
        let functions = writes.stdout.split("FUNCTION").nth(1).expect("functions");
        let busiest = functions.lines().nth(1).unwrap_or_default();
        // Other processes write, too, while the guest starts.
        assert!(
            busiest.contains("write_port_in_kernel"),
            "{}",
            writes.stdout
        );
        let none = profile("mmio-read:10000000");
        assert_eq!(none.status, 1);
        assert!(
            none.stderr.contains("10000000 MMIO reads to one"),
            "{}",
            none.stderr
        );
        guest.stop();
    });
}

/// The command shows them, and what it can't show.
#[test]
fn the_command_lists_and_counts() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let socket = guest.socket();
        let pmc = |arguments: &[&str]| {
            let arguments = arguments.iter().map(OsStr::new);
            let socket = [OsStr::new("--socket"), socket.as_os_str()];
            run([OsStr::new("pmc")]
                .into_iter()
                .chain(arguments)
                .chain(socket))
        };
        let list = pmc(&["list"]);
        assert_eq!((list.status, list.stderr.as_str()), (0, ""));
        for name in ["cpu-time", "port-writes", "halts"] {
            assert!(list.stdout.contains(name), "{}", list.stdout);
        }
        let chosen = [
            "stat",
            "--seconds",
            "0.2",
            "--event",
            "halts,ticks",
            "--per-vcpu",
        ];
        let stat = pmc(&chosen);
        let names = stat
            .stdout
            .lines()
            .skip(1)
            .map(|line| line.trim().split("  ").next());
        let names: Vec<&str> = names.flatten().take(4).collect();
        assert_eq!(
            names,
            ["ticks", "vCPU 0", "halts", "vCPU 0"],
            "{}",
            stat.stdout
        );
        let json = pmc(&["stat", "--seconds", "0.1", "--json"]);
        let counted = Counters::from_json(json.stdout.as_bytes()).expect("a document");
        assert!(counted.time > 0);
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
        let processes = counted.processes.expect("processes");
        assert!(
            processes.iter().all(|process| process.pid == 101),
            "{processes:?}"
        );
        until("processes are counted twice", || {
            let top = pmc(&["top", "--count", "2", "--interval", "0.3"]);
            assert_eq!((top.status, top.stderr.as_str()), (0, ""));
            assert_eq!(top.stdout.matches("in the last").count(), 2);
            (top.stdout.matches("COMMAND").count() == 2).then_some(())
        });
        let unknown = pmc(&["stat", "--event", "nonsense"]);
        assert_eq!(unknown.status, 2);
        assert!(
            unknown.stderr.contains("no counter 'nonsense'"),
            "{}",
            unknown.stderr
        );
        guest.stop();
    });
}
