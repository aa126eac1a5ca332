//! Boots as JSON documents.

use kvmprof_report::boot::{ComparedRow, Estimate, Row, Summary};
use serde_json::{Value, json};

/// The version of the documents' form. It stays the same when members are added.
const SCHEMA: u32 = 1;

/// All phases and initcalls. Times are in ms.
pub fn of_summary(summary: &Summary) -> Value {
    let mut document = of_boots(summary);
    document["schema"] = SCHEMA.into();
    let phases = summary.phases.iter();
    document["phases"] = phases.map(|row| of_phase(row, summary.tick_ns)).collect();
    document["initcalls"] = summary.calls.iter().map(of_row).collect();
    document
}

/// All changes.
pub fn of_comparison(
    before: &Summary,
    after: &Summary,
    phases: &[ComparedRow],
    calls: &[ComparedRow],
) -> Value {
    json!({
        "schema": SCHEMA,
        "before": of_boots(before),
        "after": of_boots(after),
        "phases": phases.iter().map(of_change).collect::<Value>(),
        "initcalls": calls.iter().map(of_change).collect::<Value>(),
    })
}

fn of_boots(summary: &Summary) -> Value {
    json!({
        "boots": summary.boots,
        "unseen": summary.unseen,
        "tick_ms": whole_ms(summary.tick_ns),
        "whole": of_time(&summary.whole),
    })
}

/// The row of a phase, and its start in each boot, by ticks that are `tick_ns` apart.
fn of_phase(row: &Row, tick_ns: u64) -> Value {
    let mut document = of_row(row);
    let begins = row.begins_ns.iter().copied();
    document["begins"] = of_time(&Estimate::new(&row.begins_ns, tick_ns));
    document["each_begins_ms"] = begins.map(whole_ms).collect();
    document
}

fn of_row(row: &Row) -> Value {
    let bounds = row.bounds_ns;
    json!({
        "name": row.name,
        "level": row.level,
        "time": of_time(&row.time),
        "bounds_ms": bounds.map(|(least, most)| [whole_ms(least), whole_ms(most)]),
    })
}

fn of_change(row: &ComparedRow) -> Value {
    json!({
        "name": row.name,
        "level": row.level,
        "before": of_time(&row.before),
        "after": of_time(&row.after),
        "change_ms": ms(row.comparison.change_ns),
        "p": row.comparison.p,
    })
}

fn of_time(time: &Estimate) -> Value {
    let interval = time.interval_ns.map(|(low, high)| [ms(low), ms(high)]);
    json!({ "ms": ms(time.mean_ns), "interval_ms": interval })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "times of a boot are far below 2^53 ns"
)]
fn whole_ms(ns: u64) -> f64 {
    ms(ns as f64)
}

fn ms(ns: f64) -> f64 {
    ns / 1e6
}
