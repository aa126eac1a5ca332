//! `kvmprof report --exits`.

use std::fs::OpenOptions;
use std::io::Write;

use kvmprof_recording::exits::{
    Counts, ExitInterval, Exits, Histogram, OfFunction, OfReason, ReasonName,
};
use serde_json::Value;

use super::{FAILURE, Folder, USAGE, run};

/// The start of the recordings in a folder, in ns.
const BEGAN: u64 = 5_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// The exits of the second with this number, all by one instruction.
fn interval(number: u64) -> ExitInterval {
    let exits = Exits {
        count: 10 + number,
        time: 10_000,
    };
    let name = ReasonName {
        name: "io\u{1b}".to_owned(),
        is_halt: false,
    };
    let reason = OfReason {
        reason: 0x7b,
        vcpu: 0,
        exits,
        longest: 1_000,
        left: exits,
        histogram: Histogram::new([exits.count]),
    };
    let function = OfFunction {
        reason: 0x7b,
        process: None,
        address: 0x1000,
        exits,
    };
    ExitInterval {
        begin: BEGAN + number * SECOND,
        end: BEGAN + (number + 1) * SECOND,
        vcpus: 1,
        names: [(0x7b, name)].into(),
        counts: Counts {
            reasons: vec![reason],
            functions: vec![function],
            ..Counts::default()
        },
        ..ExitInterval::default()
    }
}

#[test]
fn exits_of_a_recording_are_printed_as_they_were_counted() {
    let folder = Folder::new();
    let mut file = OpenOptions::new()
        .append(true)
        .open(folder.path("before"))
        .unwrap();
    for number in 0..3 {
        file.write_all(&interval(number).to_block().unwrap())
            .unwrap();
    }
    let report =
        |options: &[&str]| folder.run(&[&["report", "before", "--exits"], options].concat());
    let ran = report(&[]);
    ran.assert_success();
    assert!(
        ran.stdout
            .contains("33 exits of 1 vCPUs in 3.000 s took 0.0 % of their time"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("  io\u{fffd}  ") && ran.stdout.contains("  0x1000  "));
    let document = |options: &[&str]| -> Value {
        let ran = report(&[&["--json"], options].concat());
        ran.assert_success();
        serde_json::from_str(&ran.stdout).unwrap()
    };
    // A second counts if its middle is in the part.
    for (time, count, seconds) in [("0:9", 33, 3.0), (":1.5", 10, 1.0), ("1.5:", 23, 2.0)] {
        let document = document(&["--time", time]);
        assert_eq!(document["seconds"], seconds, "{time}");
        for table in ["reasons", "functions"] {
            assert_eq!(document[table][0]["count"], count, "{time}");
        }
    }
    report(&["--time", "5:"]).assert_refused(FAILURE, &["Nothing in before matches --time"]);
    report(&["--vcpu", "0"]).assert_refused(USAGE, &["only --time selects"]);
    report(&["after"]).assert_refused(USAGE, &["--exits takes one recording"]);
    report(&["--tree"]).assert_refused(USAGE, &[]);
    let ran = folder.run(&["report", "after", "--exits"]);
    ran.assert_refused(
        FAILURE,
        &["after has no exits: record the guest with --exits"],
    );
    run(["record", "/nowhere/guest.sock", "--exits"])
        .assert_refused(USAGE, &["--exits needs the guest's name"]);
    // What was recorded besides is as it was.
    folder.run(&["report", "before"]).assert_success();
}
