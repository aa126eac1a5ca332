//! Reads each format with a common tool: its first functions must be those of `kvmprof report`.

mod callgrind;
mod firefox;
mod inferno;
mod perf;
mod perf_script;
mod pprof;
mod speedscope;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_report::export::Format;
use kvmprof_report::profile::{Profile, SortBy, document};
use serde_json::Value;
use tempfile::TempDir;

use crate::exports::export;
use crate::exports::recording::recording;
use crate::shared::pages::count;

const ROUNDS: u64 = 7;
/// Time of a tick in ns.
const PERIOD: u64 = 10_000_000;

/// The first five functions of `kvmprof report --json`, with their self ticks.
fn expected(path: &Path) -> Vec<(String, u64)> {
    let profile = Profile::from_file(path, &[]).unwrap();
    let report = document(&profile, SortBy::Own, 5);
    let row = |row: &Value| {
        (
            row["name"].as_str().unwrap().to_owned(),
            count(&row["self"]),
        )
    };
    let rows: Vec<_> = report["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(row)
        .collect();
    // Equal counts would make the order ambiguous.
    assert_eq!(rows.len(), 5);
    assert!(rows.windows(2).all(|pair| pair[0].1 > pair[1].1));
    rows
}

/// The first five of `rows`.
fn first(rows: HashMap<String, u64>) -> Vec<(String, u64)> {
    let mut rows: Vec<(String, u64)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, count)| u64::MAX - count);
    rows.truncate(5);
    rows
}

/// The output of `command`.
pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}: tests/run installs it"));
    let text = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{complaints}");
    text
}

/// A recording in `format`, the file's folder, and the expected functions.
fn exported(format: Format) -> (TempDir, PathBuf, Vec<(String, u64)>) {
    let (folder, path) = recording(ROUNDS);
    let file = folder.path().join("exported");
    std::fs::write(&file, export(&path, &[], format)).unwrap();
    let expected = expected(&path);
    (folder, file, expected)
}
