//! The program, with the data set of a small fleet that `tests/query` generates, whose ticks are known.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod answers;
mod objects;
mod pictures;
mod refusals;
mod tutorial;

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

/// A file of the data set: one of the guest, which is on one of the hosts.
fn file_of(host: &str, guest: &str) -> PathBuf {
    let place = format!("date=2026-03-01/host={host}/guest={guest}");
    let mut files = std::fs::read_dir(fleet().folder.path().join(place)).unwrap();
    files.next().unwrap().unwrap().path()
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

/// Runs the program with the data set in this folder.
fn run_in(folder: &Path, arguments: &[&str]) -> Output {
    let mut program = program();
    program.args(arguments).env("KVMPROF_DATA", folder);
    program.output().unwrap()
}

/// Runs it with the fleet's data set.
fn run(arguments: &[&str]) -> Output {
    run_in(fleet().folder.path(), arguments)
}

/// What a program has printed that has succeeded.
#[track_caller]
fn printed(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the program prints about the fleet's data set.
#[track_caller]
fn said(arguments: &[&str]) -> String {
    printed(run(arguments))
}

#[track_caller]
fn document(arguments: &[&str]) -> Value {
    serde_json::from_str(&said(arguments)).unwrap()
}

/// The message of a failure with this status.
#[track_caller]
fn message(output: Output, status: i32) -> String {
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(output.stdout.is_empty(), "{message}");
    assert!(
        message.starts_with("kvmprof-query: ") && message.lines().count() == 1,
        "{message}"
    );
    message
}

/// A new folder for the files of a guest in the data set in `set`.
fn guest_folder(set: &Path, host: &str, guest: &str) -> PathBuf {
    let folder = set.join(format!("date=2026-03-01/host={host}/guest={guest}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The rows of an answer.
fn asked(sql: &str) -> Vec<Value> {
    let lines = said(&["--format", "json", "--", sql]);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
