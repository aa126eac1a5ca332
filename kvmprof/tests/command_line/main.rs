//! The program as users call it, where that needs no guest: exit statuses, messages, closed and full outputs, files
//! that must not be lost.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "../../../report/tests/shared/bombs.rs"]
mod bombs;
mod boot;
#[path = "../../../report/tests/shared/boot.rs"]
mod boots;
#[path = "../../../tests/shared/cgroup.rs"]
mod cgroup;
#[path = "../../../tests/shared/chromium.rs"]
mod chromium;
#[path = "../../../report/tests/shared/compiled.rs"]
mod compiled;
mod debuginfod;
mod devtools;
mod exits;
mod files;
mod filters;
mod hostile_names;
mod hostile_recording;
mod live;
mod memory_limit;
#[path = "../../../tests/shared/not_run.rs"]
mod not_run;
mod outsider;
#[path = "../../../tests/shared/own_run.rs"]
mod own_run;
mod pictures;
mod pipes;
#[path = "../../../report/tests/shared/recordings.rs"]
mod recordings;
mod reports;
mod stalls;
mod usage;
mod view;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const SUCCESS: i32 = 0;
const FAILURE: i32 = 1;
const USAGE: i32 = 2;

/// The program with these arguments, without standard input and without a guest in the environment.
fn kvmprof<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmprof"));
    command
        .args(arguments)
        .env_remove("KVMPROF_SOCKET")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

/// A program that has ended.
#[derive(Debug)]
struct ProgramResult {
    /// -1 when a signal ended it.
    status: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for ProgramResult {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl ProgramResult {
    /// Checks that it failed with one line that has each of `words` in it.
    #[track_caller]
    fn assert_refused(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
    }

    #[track_caller]
    fn assert_success(&self) {
        assert_eq!(
            (self.status, self.stderr.as_str()),
            (SUCCESS, ""),
            "{self:?}"
        );
    }

    /// The JSON document that it has printed without an error.
    #[track_caller]
    fn document(&self) -> Value {
        self.assert_success();
        serde_json::from_str(&self.stdout).unwrap()
    }
}

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> ProgramResult {
    kvmprof(arguments).output().unwrap().into()
}

/// A folder with two recordings, `before` and `after`.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        recordings::ordinary(&folder.path().join("before"), 20);
        recordings::ordinary(&folder.path().join("after"), 80);
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program with these arguments, in the folder.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = kvmprof(arguments);
        command.current_dir(&self.0);
        command
    }

    fn run(&self, arguments: &[&str]) -> ProgramResult {
        self.command(arguments).output().unwrap().into()
    }

    /// The JSON document that a command with these arguments prints.
    fn document(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["--json"]].concat()).document()
    }

    fn names(&self) -> Vec<String> {
        names(self.0.path())
    }
}

/// The names of all files in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).unwrap()
}
