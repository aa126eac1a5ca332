//! Every format has exactly the recording's ticks.

use kvmprof_report::export::Format;
use serde_json::Value;

use super::recording::{recording, ticks};
use super::{export, pprof_profile};

const ROUNDS: u64 = 7;
/// Time of a tick in ns.
const PERIOD: u64 = 10_000_000;

/// The number at the end of each of these lines.
fn last_words<'a>(lines: impl Iterator<Item = &'a str>) -> u64 {
    let numbers = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>());
    numbers.map(Result::unwrap).sum()
}

/// The ticks of all samples of a profile of pprof.
fn of_pprof(packed: &[u8]) -> u64 {
    let profile = pprof_profile(packed);
    let sum = |value: usize| {
        let values = profile.sample.iter().map(|sample| sample.value[value]);
        values.sum::<i64>().unsigned_abs()
    };
    assert_eq!(sum(1), sum(0) * PERIOD);
    sum(0)
}

/// The weights of all members of `list`, by `of` one of them.
fn weights(list: &Value, of: impl Fn(&Value) -> Vec<u64>) -> u64 {
    list.as_array().unwrap().iter().flat_map(of).sum()
}

pub fn numbers(list: &Value) -> Vec<u64> {
    let numbers = list.as_array().unwrap().iter();
    numbers.map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn totals_are_equal() {
    let (_folder, path) = recording(ROUNDS);
    let all: u64 = ticks(ROUNDS).iter().map(|(ticks, _)| ticks.idle + 1).sum();
    let text = |format| String::from_utf8(export(&path, &[], format)).unwrap();
    assert_eq!(last_words(text(Format::Folded).lines()), all);
    let script = text(Format::PerfScript);
    let heads = script
        .lines()
        .filter_map(|line| line.strip_suffix(" cpu-clock: "));
    assert_eq!(last_words(heads), all * PERIOD);
    let totals = format!("\ntotals: {all} ");
    assert!(text(Format::Callgrind).contains(&totals), "{totals}");
    assert_eq!(of_pprof(&export(&path, &[], Format::Pprof)), all);
    let json = |format| -> Value { serde_json::from_str(&text(format)).unwrap() };
    let firefox = json(Format::Firefox);
    let of_threads = weights(&firefox["threads"], |thread| {
        numbers(&thread["samples"]["weight"])
    });
    assert_eq!(of_threads, all);
    let speedscope = json(Format::Speedscope);
    let of_vcpus = weights(&speedscope["profiles"], |profile| {
        let stacks = profile["samples"].as_array().unwrap().iter();
        let weights = numbers(&profile["weights"]).into_iter().zip(stacks);
        let of_ticks = weights.filter(|(_, stack)| stack != &&Value::Array(Vec::new()));
        of_ticks.map(|(weight, _)| weight).collect()
    });
    assert_eq!(of_vcpus, all * PERIOD);
}
