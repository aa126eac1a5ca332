//! DuckDB answers the queries of the package on Parquet files. The answers are known.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::SinkKind;
use serde_json::Value;

use super::fleet::{self, DAYS, HOSTS, HZ, WINDOWS};
use super::truth::{Answer, expected};
use super::{hand_over, python, root};

#[test]
fn duckdb_answers_every_query_as_known() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake");
    for host in 0..HOSTS {
        let mut batches: Vec<Batch> = Vec::new();
        for day in 0..DAYS.len() {
            batches.extend((0..WINDOWS).map(|window| fleet::batch(day, host, window)));
        }
        let ticks: u64 = batches.iter().map(Batch::ticks).sum();
        let kind = SinkKind::Parquet {
            folder: lake.clone(),
            seconds: 30,
        };
        // The last batches of each file wait for more, until the spool is drained.
        let progress = hand_over(kind, &batches, |progress| {
            progress.delivered.ticks > ticks / 2
        });
        assert!(progress.delivered.ticks < ticks);
    }
    check_answers(&lake);
    check_script_of_the_page(&lake);
}

/// Checks DuckDB's answers to all queries on the fleet's files below `lake`.
pub fn check_answers(lake: &Path) {
    let queries = root().join("packaging/kvmprof-collect/queries.sql");
    let output = python("query.py").arg(queries).arg(lake).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut answers: BTreeMap<String, Vec<Vec<Value>>> =
        serde_json::from_slice(&output.stdout).unwrap();
    for (name, expected) in expected(&fleet::all(), HZ) {
        let rows = answers.remove(name).unwrap();
        let found: Answer = rows
            .iter()
            .map(|row| {
                let mut numbers = row.iter().skip(1).filter_map(Value::as_f64);
                (row[0].as_str().unwrap().to_owned(), numbers.next().unwrap())
            })
            .collect();
        let is_same = found.len() == expected.len()
            && found.iter().zip(&expected).all(|(found, expected)| {
                found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6
            });
        assert!(
            is_same && (found.len() > 1 || name == "callers_of"),
            "{name}: {found:?}, not {expected:?}"
        );
    }
    assert!(answers.is_empty(), "{answers:?}");
}

/// Runs the script at the start of docs/fleet.md.
fn check_script_of_the_page(lake: &Path) {
    let page = std::fs::read_to_string(root().join("docs/fleet.md")).unwrap();
    let lines = page.lines().skip_while(|line| !line.contains("<<'END'"));
    let lines = lines.skip(1).take_while(|line| line.trim() != "END");
    let script: Vec<&str> = lines
        .map(|line| line.get(4..).unwrap_or_default())
        .collect();
    let folder = lake.display().to_string();
    let script = script
        .join("\n")
        .replace("/var/lib/kvmprof-collect/parquet", &folder);
    assert!(script.contains(&folder), "{script}");
    let output = Command::new(root().join("target/receivers/bin/python"))
        .args(["-c", &script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("copy_page"), "{table}");
}
