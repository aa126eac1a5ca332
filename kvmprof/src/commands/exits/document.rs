//! What `kvmprof exits --json` prints.

use kvmprof_recording::exits::{Exits, Lost, OfAccess, OfFunction, OfProcess, OfReason};
use serde_json::{Value, json};

use super::{Part, names, tables, waits};

/// The document of one part of the time.
pub fn document(part: &Part<'_>) -> Value {
    let interval = part.interval;
    let counts = &interval.counts;
    let reason = |one: &OfReason| {
        json!({
            "reason": interval.reason(one.reason),
            "number": one.reason,
            "vcpu": one.vcpu,
            "is_halt": interval.is_halt(one.reason),
            "count": one.exits.count,
            "time_ns": one.exits.time,
            "median_ns": one.histogram.percentile(50),
            "p99_ns": one.histogram.percentile(99),
            "longest_ns": one.longest,
            "vmm_count": one.left.count,
            "vmm_time_ns": one.left.time,
        })
    };
    let access = |one: &OfAccess| {
        json!({
            "reason": interval.reason(one.reason),
            "kind": names::kind(one.kind),
            "place": one.place,
            "name": names::register(one),
            "count": one.exits.count,
            "time_ns": one.exits.time,
        })
    };
    let process_names = names::processes(counts);
    let function = |one: &OfFunction| {
        json!({
            "reason": interval.reason(one.reason),
            "pid": one.process,
            "process": one.process.and_then(|pid| process_names.get(&pid)),
            "address": format!("{:#x}", one.address),
            "function": part.symbols.and_then(|symbols| symbols.find(one.address)),
            "count": one.exits.count,
            "time_ns": one.exits.time,
        })
    };
    let process = |one: &OfProcess| {
        json!({
            "reason": interval.reason(one.reason),
            "pid": one.process,
            "process": one.process.and_then(|pid| process_names.get(&pid)),
            "container": names::container(interval, one.process),
            "count": one.exits.count,
            "time_ns": one.exits.time,
        })
    };
    let Lost {
        threads,
        reasons,
        accesses,
        functions,
        processes,
        waits,
        slots,
        interrupts,
    } = counts.lost;
    json!({
        "seconds": tables::seconds(interval.time()),
        "vcpus": interval.vcpus,
        "reasons": sorted(part, &counts.reasons, |one| one.exits, reason),
        "accesses": sorted(part, &counts.accesses, |one| one.exits, access),
        "functions": sorted(part, &counts.functions, |one| one.exits, function),
        "processes": sorted(part, &counts.processes, |one| one.exits, process),
        "knows_processes": interval.knows_processes,
        "waits": waits::document(part),
        "throttled_count": interval.host.throttled.count,
        "throttled_ns": interval.host.throttled.time,
        "host_processors": interval.host.processors,
        "host_stolen_ns": interval.host.stolen,
        "unfinished": counts.unfinished,
        "lost": {
            "threads": threads,
            "reasons": reasons,
            "accesses": accesses,
            "functions": functions,
            "processes": processes,
            "turns": waits,
            "waits": slots,
            "interrupts": interrupts,
        },
        "missing_tracepoints": interval.missing,
    })
}

/// The entries with exits, in their order.
fn sorted<T>(
    part: &Part<'_>,
    entries: &[T],
    exits: impl Fn(&T) -> Exits,
    document: impl Fn(&T) -> Value,
) -> Vec<Value> {
    let mut entries: Vec<&T> = entries.iter().filter(|one| exits(one).count > 0).collect();
    entries.sort_by_key(|one| std::cmp::Reverse(part.sort.key(exits(one))));
    let entries = entries.into_iter().take(part.rows);
    entries.map(document).collect()
}
