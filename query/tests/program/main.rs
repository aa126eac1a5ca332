//! The program, with the data set of a small fleet that `tests/query` generates, whose ticks are known.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod answers;
mod objects;
mod pictures;
mod refusals;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// A data set, and the known ticks in it.
struct Fleet {
    folder: TempDir,
    truth: Value,
}

/// Three hosts with two guests each, a day of windows of an hour: 5040 rows.
fn fleet() -> &'static Fleet {
    static FLEET: OnceLock<Fleet> = OnceLock::new();
    FLEET.get_or_init(|| {
        let program = root().join("target/x86_64-unknown-linux-gnu/release/examples/fleet");
        assert!(
            program.is_file(),
            "no {}: run tests/query",
            program.display()
        );
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new(program)
            .args(["--hosts", "3", "--window", "3600"])
            .arg(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        let truth = serde_json::from_slice(&made.stdout).unwrap();
        Fleet { folder, truth }
    })
}

/// A file of the data set.
fn a_file() -> PathBuf {
    let place = "date=2026-03-01/host=host-0/guest=db-0";
    let files = std::fs::read_dir(fleet().folder.path().join(place)).unwrap();
    files.map(|file| file.unwrap().path()).next().unwrap()
}

/// The folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kvmprof-query"));
    program.env_remove("KVMPROF_DATA");
    program
}

/// Runs the program with the fleet's data set.
fn run(arguments: &[&str]) -> Output {
    let mut program = program();
    program
        .args(arguments)
        .env("KVMPROF_DATA", fleet().folder.path());
    program.output().unwrap()
}

/// Its output, if it succeeds.
fn said(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rows of an answer.
fn asked(sql: &str) -> Vec<Value> {
    let lines = said(&["--format", "json", "--", sql]);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
