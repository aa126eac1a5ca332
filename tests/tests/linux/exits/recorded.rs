//! A recording with the exits of each second, beside `kvmprof exits`, which begins later and ends earlier: the seconds within that time have no more exits than it counts, those that touch it no
//! fewer.

use std::collections::BTreeMap;

use kvmprof_recording::exits::ExitInterval;
use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_tests::linux::Finished;
use serde_json::Value;

use super::{Exits, PORT, SAMPLED, by_kvmprof, number, program};

/// The unit of the host's times, in ns.
const UNIT: u64 = 10_000_000;

/// The exits in the intervals that are `wanted`, by reason.
fn by_reason(
    intervals: &[ExitInterval],
    wanted: impl Fn(&ExitInterval) -> bool,
) -> BTreeMap<String, Exits> {
    let mut counts: BTreeMap<String, Exits> = BTreeMap::new();
    for interval in intervals.iter().filter(|interval| wanted(interval)) {
        for one in &interval.counts.reasons {
            let (count, time) = counts.entry(interval.reason(one.reason)).or_default();
            *count += one.exits.count;
            *time += one.exits.time as f64;
        }
    }
    counts
}

/// How often the program has written to its port, by `kind` of entry of a document.
fn writes(document: &Value, kind: &str, is_wanted: impl Fn(&Value) -> bool) -> u64 {
    let rows = document[kind].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["reason"] == "io" && is_wanted(row));
    rows.map(|row| number(row, "count")).sum()
}

pub fn a_recording_has_what_is_counted_beside_it(run: &Finished) {
    let recording = Recording::open(&run.path("some.kvmprof")).unwrap();
    let mut intervals = Vec::new();
    let contents = recording.exits(&Unobserved, |one| intervals.push(one.clone()));
    let began = contents.unwrap().info.began_monotonic_ns;
    assert!(intervals.len() >= 3, "{intervals:?}");
    assert!(intervals[0].begin >= began);
    for pair in intervals.windows(2) {
        assert_eq!(pair[0].end, pair[1].begin);
    }
    let times = run.text("beside.times");
    // In hundredths of a second, as 12.34.
    let times = times.split_whitespace().map(|word| word.replace('.', ""));
    let times: Vec<u64> = times
        .map(|time| UNIT * time.parse::<u64>().unwrap())
        .collect();
    let [before, begun, end, after] = times[..] else {
        panic!("{times:?}")
    };
    let within = by_reason(&intervals, |one| {
        one.begin >= begun + UNIT && one.end <= end
    });
    let touching = by_reason(&intervals, |one| {
        one.end >= before && one.begin <= after + UNIT
    });
    let beside = run.json("beside.json");
    let seen = by_kvmprof(&beside);
    println!("{within:?}\n{seen:?}\n{touching:?}");
    let count = |counts: &BTreeMap<String, Exits>, name: &str| {
        counts.get(name).map_or(0, |(count, _)| *count)
    };
    for name in touching.keys().chain(seen.keys()) {
        let seen = count(&seen, name);
        assert!(
            count(&within, name) <= seen && seen <= count(&touching, name),
            "{name}"
        );
    }
    // What is printed is all of it.
    let recorded = run.json("recorded.json");
    assert_eq!(by_kvmprof(&recorded), by_reason(&intervals, |_| true));
    let text = program().text;
    for document in [&recorded, &beside] {
        let of_port = |row: &Value| row["kind"] == "port-write" && row["place"] == PORT;
        assert_eq!(writes(document, "accesses", of_port), SAMPLED);
        let of_program = |row: &Value| {
            let address = row["address"].as_str().unwrap().trim_start_matches("0x");
            text.contains(&u64::from_str_radix(address, 16).unwrap())
        };
        assert_eq!(writes(document, "functions", of_program), SAMPLED);
    }
    assert_eq!(recorded["knows_processes"], true);
    let of_ports = |row: &Value| row["process"] == "ports";
    assert!(writes(&recorded, "processes", of_ports) >= SAMPLED);
    let halts = recorded["functions"].as_array().unwrap().iter();
    let mut halts = halts.filter(|row| row["reason"] == "hlt").peekable();
    assert!(halts.peek().is_some() && halts.all(|row| !row["function"].is_null()));
}
