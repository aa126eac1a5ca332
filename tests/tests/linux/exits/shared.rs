//! Two guests that share a processor: a Linux guest whose two vCPUs never halt, and the demo guest, which halts sometimes. Each vCPU's wait is what the others run
//! meanwhile, by the host's scheduler.

use std::collections::BTreeMap;

use kvmprof_tests::linux::Finished;
use serde_json::Value;

use super::{number, scheduled};

/// Maximum difference of times.
const MARGIN: f64 = 0.02;

/// The times between two moments for which the vCPUs' threads ran and waited, in ns, by thread.
fn between(run: &Finished, guest: &str) -> BTreeMap<u64, [f64; 2]> {
    let [begin, end] = ["begin", "end"].map(|moment| scheduled(run, &format!("{guest}.{moment}")));
    let times = end.into_iter().map(|(thread, end)| {
        let begin = &begin[&thread];
        (thread, [end.ran - begin.ran, end.waited - begin.waited])
    });
    times.collect()
}

fn time(rows: &Value, is_wanted: impl Fn(&Value) -> bool) -> f64 {
    let rows = rows.as_array().unwrap().iter().filter(|row| is_wanted(row));
    rows.map(|row| number(row, "time_ns") as f64).sum()
}

pub fn vcpus_take_the_time_of_another_guest(run: &Finished) {
    let [linux, demo] = ["shared", "sharing"].map(|guest| between(run, guest));
    let documents = ["shared", "sharing"].map(|guest| run.json(&format!("{guest}.json")));
    let [of_linux, of_demo] = documents
        .each_ref()
        .map(|document| document["waits"].as_array().unwrap());
    assert_eq!((linux.len(), demo.len()), (2, 1));
    assert_eq!((of_linux.len(), of_demo.len()), (2, 1));
    for row in of_linux.iter().chain(of_demo) {
        let thread = number(row, "tid");
        let [_, waited] = linux.get(&thread).unwrap_or_else(|| &demo[&thread]);
        let known = time(&row["taken_by"], |_| true);
        println!(
            "{thread} waited {waited} ns: {} ns, {known} ns of them are known",
            row["time_ns"]
        );
        assert!(
            (number(row, "time_ns") as f64 - waited).abs() <= MARGIN * waited,
            "{row}"
        );
        assert!((known - waited).abs() <= MARGIN * waited, "{row}");
    }
    // While the demo's vCPU runs both others wait. The scheduler may leave interrupts out of the time for which it runs.
    let (thread, [ran, _]) = demo.iter().next().unwrap();
    let interrupts = time(&of_demo[0]["interrupts"], |_| true);
    for row in of_linux {
        let taken = time(&row["taken_by"], |other| number(other, "tid") == *thread);
        println!("the demo's vCPU ran {ran} ns, and {interrupts} ns in interrupts: {taken} ns");
        assert!(taken >= (1.0 - MARGIN) * ran && taken <= (1.0 + MARGIN) * (ran + interrupts));
    }
    // The demo's vCPU waits for those of Linux.
    let by_vcpus = time(&of_demo[0]["taken_by"], |other| {
        linux.contains_key(&number(other, "tid"))
    });
    let [_, waited] = demo[thread];
    println!("it waited {waited} ns, {by_vcpus} ns for vCPUs of the other guest");
    assert!(by_vcpus * 10.0 >= waited * 9.0);
}
