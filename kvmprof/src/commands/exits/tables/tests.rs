//! Tests of what is printed.

use kvmprof_recording::exits::{
    AccessKind, Counts, ExitInterval, HostTimes, InterruptKind, Lost, OfAccess, OfFunction,
    OfInterrupt, OfProcess, OfThread, OfWait,
};
use kvmprof_report::profile::Symbols;

use super::*;
use crate::commands::exits::Sort;

fn counts() -> Counts {
    let exits = |count, time| Exits { count, time };
    let reason = |reason, vcpu, all| OfReason {
        reason,
        vcpu,
        exits: all,
        longest: 7_777_777,
        left: exits(1, 10),
        ..OfReason::default()
    };
    let function = |address| OfFunction {
        reason: 0x7b,
        process: Some(12),
        address,
        exits: exits(10, 9_000),
    };
    Counts {
        reasons: vec![
            reason(0x7b, 0, exits(123_456, 999_999_999)),
            reason(0x7b, 1, exits(4, 1_000)),
        ],
        accesses: vec![OfAccess {
            reason: 0x7b,
            kind: AccessKind::MsrWrite,
            place: 0x6e0,
            exits: exits(2, 100),
        }],
        functions: vec![function(0x1004), function(0x1008), function(0x9000)],
        processes: vec![
            OfProcess {
                reason: 0x7b,
                process: Some(12),
                name: *b"nginx\0leftover\0\0",
                exits: exits(30, 27_000),
            },
            OfProcess {
                reason: 0x7b,
                process: None,
                name: [0; 16],
                exits: exits(2, 1_000),
            },
        ],
        threads: vec![OfThread {
            thread: 101,
            vcpu: 1,
            waits: exits(5, 600_000_000),
            migrations: 17,
        }],
        waits: vec![
            OfWait {
                thread: 101,
                other_thread: 78,
                other_process: 77,
                name: *b"rustc\0\0\0\0\0\0\0\0\0\0\0",
                turns: exits(4, 500_000_000),
            },
            OfWait {
                thread: 101,
                other_thread: 0,
                other_process: 0,
                name: [0; 16],
                turns: exits(1, 60_000_000),
            },
        ],
        interrupts: vec![
            OfInterrupt {
                thread: 101,
                kind: InterruptKind::Device,
                number: 24,
                time: exits(7, 14_000_000),
            },
            OfInterrupt {
                thread: 101,
                kind: InterruptKind::Softirq,
                number: 3,
                time: exits(2, 6_000_000),
            },
            OfInterrupt {
                thread: 101,
                kind: InterruptKind::Timer,
                number: 0,
                time: exits(9, 2_000_000),
            },
        ],
        unfinished: 1,
        lost: Lost {
            functions: 3,
            ..Lost::default()
        },
        ..Counts::default()
    }
}

/// What is printed of [`counts`], and the words of its lines.
fn written(change: impl FnOnce(&mut ExitInterval), by: Option<Table>) -> (String, Vec<String>) {
    let symbols = Symbols::parse("0000000000001000 t native_write_msr\n0000000000001100 ? [end]\n");
    let mut interval = ExitInterval {
        begin: 5_000_000_000,
        end: 7_000_000_000,
        vcpus: 2,
        knows_processes: true,
        softirqs: [(3, "NET_RX".to_owned())].into(),
        containers: [(12, "4f1d\x1b[2J".to_owned()), (13, String::new())].into(),
        host: HostTimes {
            throttled: Exits {
                count: 3,
                time: 400_000_000,
            },
            stolen: 800_000_000,
            processors: 16,
        },
        missing: vec!["kvm_hypercall".to_owned()],
        counts: counts(),
        ..ExitInterval::default()
    };
    change(&mut interval);
    let part = Part {
        interval: &interval,
        symbols: interval.knows_processes.then_some(&symbols),
        by,
        sort: Sort::Time,
        rows: 20,
    };
    let mut output = Vec::new();
    write(&part, &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines = text.lines().map(words).collect();
    (text, lines)
}

#[test]
fn tables_have_all_that_was_counted() {
    let (text, lines) = written(|_| (), None);
    for expected in [
        "0x7b 123460 61730 1.0s - - 7.8ms 0 %",
        "write MSR TSC_DEADLINE 0x7b 2 1 100ns 50ns",
        "nginx (12) 0x7b 30 15 27.0us 900ns",
        "[not known] 0x7b 2 1 1.0us 500ns",
        "4f1d\u{fffd}[2J 0x7b 30 15 27.0us 900ns",
        "native_write_msr nginx 0x7b 20 18.0us 900ns",
        "0x9000 nginx 0x7b 10 9.0us 900ns",
        "1 4 2 1.0us 0 0ns 600ms 17",
        "rustc 77 1 4 500ms 25.0 %",
        "[idle] 0 1 1 60.0ms 3.0 %",
        "[not known] - 1 - 40.0ms 2.0 %",
        "[interrupt 24] - 1 7 14.0ms 0.7 %",
        "[softirq NET_RX] - 1 2 6.0ms 0.3 %",
        "[interrupt timer] - 1 9 2.0ms 0.1 %",
        "123460 exits of 2 vCPUs in 2.000 s took 25.0 % of their time; halts: 0, 0.0 %",
        "vCPUs waited 5 times for a processor, 15.0 % of their time",
        "18 interrupts of the host took 0.6 % of their time",
        "Control groups of the VMM had no quota left in 3 periods, for 400ms",
        "This host's 16 processors waited for those of its own host 2.5 % of their time",
        "vCPUs whose exit isn't over, and not counted yet: 1",
        "Exits that aren't counted, only by instruction: too many addresses: 3",
        "The host's kernel lacks these tracepoints: kvm_hypercall",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}: {text}"
        );
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn one_table_is_printed_alone() {
    let (text, _) = written(|_| (), Some(Table::Process));
    let headings = [
        "REASON ",
        "ACCESS",
        "PROCESS ",
        "CONTAINER ",
        "FUNCTION",
        "VCPU",
        "TAKEN BY",
    ];
    let seen = headings.map(|heading| {
        let line = format!("  {heading}");
        text.lines().any(|text| text.starts_with(&line))
    });
    assert_eq!(
        seen,
        [false, false, true, false, false, false, false],
        "{text}"
    );
}

#[test]
fn guests_whose_kernel_is_unknown_have_addresses() {
    let (text, lines) = written(|interval| interval.knows_processes = false, None);
    for expected in [
        "0x1004 0x7b 10 5 9.0us 900ns",
        "The guest's kernel isn't known: exits have addresses, and no processes",
    ] {
        let is_there = lines.iter().any(|line| line == expected);
        assert!(is_there, "{expected}: {text}");
    }
}

#[test]
fn long_names_are_shortened() {
    assert_eq!(shortened("x".repeat(28), 28), "x".repeat(28));
    assert_eq!(shortened("é".repeat(29), 28), "é".repeat(27) + "…");
}

#[test]
fn durations_are_short() {
    for (ns, expected) in [
        (0, "0ns"),
        (999, "999ns"),
        (1_234, "1.2us"),
        (99_949, "99.9us"),
        (99_950, "100us"),
        (12_000_000, "12.0ms"),
        (86_400_000_000_000, "86400s"),
    ] {
        assert_eq!(duration(ns), expected);
    }
}
