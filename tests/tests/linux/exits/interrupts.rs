//! The host's interrupts while a vCPU's thread has a processor, beside what the host's own tracer notes at the same tracepoints.

use std::collections::BTreeMap;

use kvmprof_tests::linux::Finished;
use serde_json::Value;

use super::{number, tracer};

/// The thread, the kind and the number of an interrupt.
type Key = (u64, &'static str, u64);
/// Their number, and their time in ns.
type Interrupts = BTreeMap<Key, (u64, u64)>;

/// The tracepoints, and what documents call their interrupts.
const KINDS: [(&str, &str); 6] = [
    ("irq_handler", "device"),
    ("softirq", "softirq"),
    ("local_timer", "timer"),
    ("reschedule", "reschedule"),
    ("call_function_single", "call-single"),
    ("call_function", "call"),
];

/// The number of interrupts of a kind that may come before a thread's first exit.
const BEFORE: u64 = 5;

/// What interrupts a thread now.
#[derive(Default)]
struct Interrupted {
    interrupt: Option<u64>,
    softirq: Option<u64>,
    /// The time of interrupts within the softirq.
    within: u64,
}

/// By the tracer.
fn by_tracer(text: &str) -> Interrupts {
    let mut threads: BTreeMap<u64, Interrupted> = BTreeMap::new();
    let mut counts = Interrupts::new();
    for event in tracer::events(text) {
        let (thread, time) = (event.thread, event.time);
        let (name, moment) = event.name.rsplit_once('_').unwrap_or_default();
        let kind = KINDS.into_iter().find(|(known, _)| *known == name);
        let (_, kind) = kind.unwrap_or_else(|| panic!("{}", event.name));
        let number = event.number("irq").or_else(|| event.number("vec"));
        let number = number.filter(|_| ["device", "softirq"].contains(&kind));
        let number = number.unwrap_or(0);
        let of = threads.entry(thread).or_default();
        let is_softirq = kind == "softirq";
        let since = if is_softirq {
            &mut of.softirq
        } else {
            &mut of.interrupt
        };
        if moment == "entry" {
            *since = Some(time);
            of.within = if is_softirq { 0 } else { of.within };
            continue;
        }
        let Some(begun) = since.take() else {
            continue;
        };
        let mut taken = time - begun;
        if is_softirq {
            taken = taken.saturating_sub(of.within);
        } else {
            of.within += taken;
        }
        let (count, sum) = counts.entry((thread, kind, number)).or_default();
        *count += 1;
        *sum += taken;
    }
    counts
}

/// By kvmprof, of each vCPU's thread.
fn by_kvmprof(document: &Value) -> Interrupts {
    let mut counts = Interrupts::new();
    for thread in document["waits"].as_array().unwrap() {
        for row in thread["interrupts"].as_array().unwrap() {
            let kind = KINDS.into_iter().find(|(_, kind)| row["kind"] == *kind);
            let (_, kind) = kind.unwrap_or_else(|| panic!("{row}"));
            assert_eq!(row["name"].is_string(), kind == "softirq", "{row}");
            let key = (number(thread, "tid"), kind, number(row, "number"));
            counts.insert(key, (number(row, "count"), number(row, "time_ns")));
        }
    }
    counts
}

/// Checks that they are those of the tracer. Both count from one moment at which no vCPU runs to another, but kvmprof only once a thread has made an exit.
pub fn interrupts_are_those_of_the_hosts_tracer(run: &Finished) {
    let document = run.json("both.json");
    let seen = by_kvmprof(&document);
    let known = by_tracer(&run.text("interrupts.trace"));
    println!("{seen:?}\nthe tracer: {known:?}");
    for (key, (count, _)) in &seen {
        let (all, _) = known.get(key).copied().unwrap_or_default();
        // Those that come while eBPF runs pass no program. How many these are depends on the emulator's speed.
        let is_so = *count <= all && all <= 2 * count + BEFORE;
        assert!(is_so, "{key:?}: {count}, by the tracer {all}");
    }
    let unseen = known.iter().filter(|(key, _)| !seen.contains_key(key));
    assert!(
        unseen.clone().all(|(_, (count, _))| *count <= BEFORE),
        "{:?}",
        unseen.collect::<Vec<_>>()
    );
    let kinds = seen.keys().map(|(_, kind, _)| *kind);
    let kinds: Vec<&str> = kinds.collect();
    assert!(
        kinds.contains(&"timer") && kinds.contains(&"softirq"),
        "{kinds:?}"
    );
    let all = |counts: &Interrupts| counts.values().map(|(_, time)| *time).sum::<u64>();
    let (ours, tracers) = (all(&seen), all(&known));
    println!("{ours} ns, by the tracer {tracers} ns");
    // The tracer notes each moment behind kvmprof, whose program has more to do at the end.
    assert!(ours * 20 <= tracers * 21 && ours * 2 >= tracers);
    assert_eq!(document["lost"]["interrupts"], 0);
}
