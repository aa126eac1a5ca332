//! The demo's output.

use std::fmt::Write;
use std::time::Duration;

use kvmprof_abi::pcs::{Ledger, Status};
use kvmprof_demo_guest::{Mode, ROWS, Row, rows};
use kvmprof_recording::{misleads, without_sample};
use serde_json::{Value, json};

use super::Findings;
use crate::commands::bar::bar;

/// Each row of the truth with its share of the time, expected and observed, as parts of 1.
fn shares(findings: &Findings) -> Vec<(&'static Row, f64, f64)> {
    let expected = parts_of_one(&findings.expected, 0);
    let observed = parts_of_one(&findings.recorded.observed, findings.recorded.foreign);
    rows()
        .iter()
        .zip(expected.into_iter().zip(observed))
        .map(|(row, (expected, observed))| (row, expected, observed))
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "shares are shown with one decimal place"
)]
fn parts_of_one(parts: &[u64; ROWS], others: u64) -> [f64; ROWS] {
    let total = (parts.iter().sum::<u64>() + others).max(1);
    parts.map(|part| part as f64 / total as f64)
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::User => "user",
        Mode::Kernel => "kernel",
        Mode::Interrupt => "interrupt",
        Mode::Idle => "idle",
    }
}

/// The findings as a table for people.
pub fn text(findings: &Findings, time: Duration) -> String {
    let status = &findings.recorded.status;
    let shares = shares(findings);
    let largest = shares
        .iter()
        .map(|row| row.2)
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut text = format!(
        "{} of the embedded guest, {} Hz, {} s: who used the time\n\n{:<10} {:>4}  {:<16} {:>9} {:>9}\n",
        if status.vcpus == 1 {
            "1 vCPU".to_owned()
        } else {
            format!("{} vCPUs", status.vcpus)
        },
        status.hz,
        time.as_secs_f64(),
        "mode",
        "pid",
        "name",
        "expected",
        "observed",
    );
    for (row, expected, observed) in shares {
        let pid = row
            .pid
            .map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let line = format!(
            "{:<10} {pid:>4}  {:<16} {:>7.1} % {:>7.1} %  {}",
            mode_name(row.mode),
            row.name,
            expected * 100.0,
            observed * 100.0,
            bar(observed / largest),
        );
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if let Some(warning) = unseen(status) {
        let _ = write!(text, "\n{warning}");
    }
    let [(_, ticks), parts @ ..] = status.ledger.fields();
    let parts = parts.map(|(name, part)| format!("{part} {name}"));
    let _ = writeln!(text, "\n{ticks} ticks = {}", parts.join(" + "));
    text.push_str(
        "expected: what the guest itself counted; observed: samples taken from outside\n",
    );
    text
}

/// A warning if too many ticks have no sample for both columns to agree: the guest counts on while the host runs something else.
fn unseen(status: &Status) -> Option<String> {
    let Ledger {
        ticks,
        stolen,
        lost,
        ..
    } = status.ledger;
    misleads(ticks, lost, stolen).then(|| {
        format!(
            "{}: \"observed\" is of\nthe other ticks, \"expected\" of all the time, so they differ. Try a host with less to do.\n",
            without_sample(ticks, lost, stolen)
        )
    })
}

/// The version of the object's form. It stays the same when members are added.
const SCHEMA: u32 = 1;

/// The findings as one JSON object; shares are parts of 1.
pub fn json(findings: &Findings) -> Value {
    let status = &findings.recorded.status;
    let rows: Vec<Value> = shares(findings)
        .into_iter()
        .map(|(row, expected, observed)| {
            json!({
                "mode": mode_name(row.mode),
                "pid": row.pid,
                "name": row.name,
                "expected": expected,
                "observed": observed,
            })
        })
        .collect();
    let mut object = json!({
        "schema": SCHEMA,
        "hz": status.hz,
        "vcpus": status.vcpus,
        "rows": rows,
    });
    for (name, value) in status.ledger.fields() {
        object[name] = value.into();
    }
    object
}

/// The guest's own counts in each row, in cycles of its TSC, as one JSON object. A row of the kernel has the functions
/// that identify it; the row without any is the rest of the kernel's time.
pub fn truth_json(cycles: &[u64; ROWS]) -> Value {
    let rows: Vec<Value> = rows()
        .iter()
        .zip(cycles)
        .map(|(row, cycles)| {
            json!({
                "mode": mode_name(row.mode),
                "name": row.name,
                "functions": row.functions,
                "cycles": cycles,
            })
        })
        .collect();
    json!({ "schema": SCHEMA, "rows": rows })
}

#[cfg(test)]
mod tests {
    use super::super::record::Recorded;
    use super::*;

    fn text_of(stolen: u64) -> String {
        let ledger = Ledger {
            ticks: 1000,
            recorded: 990 - stolen,
            stolen,
            lost: 10,
            ..Ledger::default()
        };
        let findings = Findings {
            recorded: Recorded {
                status: Status {
                    ledger,
                    ..Status::default()
                },
                observed: [10; ROWS],
                foreign: 0,
            },
            expected: [1; ROWS],
            graph: None,
        };
        text(&findings, Duration::from_secs(5))
    }

    /// Otherwise the columns look as if the clock were wrong.
    #[test]
    fn a_busy_host_is_named_where_most_ticks_were_stolen() {
        assert!(!text_of(20).contains("stolen by the host"));
        let text = text_of(850);
        let said = "\n86.0 % of the ticks have no sample (85.0 % stolen by the host, 1.0 % lost): \"observed\" is of\n";
        assert!(text.contains(said), "{text}");
    }
}
