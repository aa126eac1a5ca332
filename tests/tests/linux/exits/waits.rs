//! For how long the vCPUs' threads wait for a processor, and what runs there meanwhile, beside what the host's own tracer notes at the same tracepoints.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_tests::linux::Finished;
use serde_json::Value;

use super::{MARGIN, number, scheduled, tracer};

/// A thread.
#[derive(Default)]
struct Thread {
    runs: bool,
    waits_since: Option<u64>,
    noted: Waits,
}

/// Number and time in ns of a thread's waits, and the number of its migrations.
type Waits = (u64, u64, u64);

/// The waits of each of the `threads` by the tracer: all, and those before the mark.
fn by_tracer(text: &str, threads: &BTreeSet<u64>) -> [BTreeMap<u64, Waits>; 2] {
    let mut all: BTreeMap<u64, Thread> =
        threads.iter().map(|id| (*id, Thread::default())).collect();
    let waits = |all: &BTreeMap<u64, Thread>| {
        let waits = all.iter().map(|(id, thread)| (*id, thread.noted));
        waits.collect()
    };
    let mut before = None;
    for event in tracer::events(text) {
        match event.name {
            "sched_switch" => {
                let [from, to] =
                    ["prev_pid", "next_pid"].map(|member| event.number(member).unwrap());
                if let Some(thread) = all.get_mut(&from) {
                    thread.runs = false;
                    // Else it blocks.
                    let is_runnable = event.member("prev_state").unwrap().starts_with('R');
                    thread.waits_since = is_runnable.then_some(event.time);
                }
                if let Some(thread) = all.get_mut(&to) {
                    thread.runs = true;
                    if let Some(since) = thread.waits_since.take() {
                        thread.noted.0 += 1;
                        thread.noted.1 += event.time - since;
                    }
                }
            }
            "sched_wakeup" => {
                let thread = all.get_mut(&event.number("pid").unwrap()).unwrap();
                if !thread.runs {
                    thread.waits_since.get_or_insert(event.time);
                }
            }
            "sched_migrate_task" => {
                let thread = all.get_mut(&event.number("pid").unwrap());
                thread.unwrap().noted.2 += 1;
            }
            "tracing_mark_write" => before = Some(waits(&all)),
            other => panic!("{other}"),
        }
    }
    [waits(&all), before.unwrap()]
}

/// kvmprof counts from a moment behind the tracer's first event and before a mark, at which no vCPU runs, to one at which none runs any more. The scheduler says that
/// each wait ends with a turn.
pub fn waits_are_those_that_the_hosts_tracer_notes(run: &Finished) {
    let document = run.json("known.json");
    let [before, begin, end] = ["before", "begin", "end"].map(|moment| scheduled(run, moment));
    let waits = document["waits"].as_array().unwrap();
    let threads: BTreeSet<u64> = waits.iter().map(|row| number(row, "tid")).collect();
    assert_eq!(threads.len(), 2, "{waits:?}");
    let [all, early] = by_tracer(&run.text("waits.trace"), &threads);
    for row in waits {
        let thread = number(row, "tid");
        let [before, begin, end] = [&before, &begin, &end].map(|moment| &moment[&thread]);
        let (count, time) = (number(row, "count"), number(row, "time_ns"));
        let (all, early) = (all[&thread], early[&thread]);
        let [least, most] = [begin, before].map(|since| end.turns - since.turns);
        println!(
            "vCPU {}: {count} waits, {time} ns; by the tracer {all:?}, of them {early:?} before the mark; {least} to {most} turns",
            row["vcpu"]
        );
        assert!(count > 0 && time > 0);
        // A wake-up by an interrupt that comes while eBPF runs passes no program.
        let least_waits = all.0 - early.0;
        assert!(
            count <= all.0 && count + count / 50 + 1 >= least_waits,
            "{row}"
        );
        // A thread that wasn't woken up hasn't waited.
        assert!(count <= most && count + least / 10 + 3 >= least, "{row}");
        let migrations = number(row, "migrations");
        assert!((all.2 - early.2..=all.2).contains(&migrations), "{row}");
        let [time, least, most] = [time, all.1 - early.1, all.1].map(|time| time as f64);
        assert!(time >= (1.0 - MARGIN) * least, "{row}");
        assert!(time <= (1.0 + MARGIN) * most, "{row}");
    }
}

pub fn waits_have_what_ran_meanwhile(run: &Finished) {
    let document = run.json("known.json");
    let pids = run.text("known.pids");
    let mut pids = pids.split_whitespace().map(|pid| pid.parse().unwrap());
    let vmm: u64 = pids.next().unwrap();
    let hogs: Vec<u64> = pids.collect();
    let waits = document["waits"].as_array().unwrap();
    let vcpus: Vec<&Value> = waits.iter().map(|row| &row["tid"]).collect();
    let (mut waited, mut known, mut of_hogs, mut of_vcpus) = (0, 0, 0, 0);
    for row in waits {
        waited += number(row, "time_ns");
        for other in row["taken_by"].as_array().unwrap() {
            let time = number(other, "time_ns");
            known += time;
            if hogs.contains(&number(other, "pid")) {
                of_hogs += time;
                assert_eq!(other["name"], "hog");
            }
            let is_vcpu = other["pid"] == vmm && vcpus.contains(&&other["tid"]);
            of_vcpus += if is_vcpu { time } else { 0 };
            assert_eq!(other["is_vcpu"], is_vcpu, "{other}");
            assert_ne!(other["tid"], row["tid"], "a thread takes its own time");
        }
    }
    println!("{waited} ns, of which {known} are known, {of_hogs} of the hogs, {of_vcpus} of vCPUs");
    // What ran before a thread that waits was moved to another processor isn't known.
    assert!(known <= waited + waited / 100 && known * 4 >= waited * 3);
    // How much each of them takes is up to the scheduler: the test of two guests on one processor says what it is.
    assert!(of_hogs > 0 && of_vcpus > 0);
}
