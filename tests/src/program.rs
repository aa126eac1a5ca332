//! The program under test, and other programs that tests run.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use kvmprof_lab::shared_libraries;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::in_lab;

/// The folder of the repository's files in the lab.
const LAB_FOLDER: &str = "/lab";

/// A program that has ended, with its output.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status; -1 if a signal ended it.
    pub status: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ran {
    /// Its output, after it has succeeded without a message.
    ///
    /// # Panics
    /// If it has failed, or said something on standard error.
    #[track_caller]
    pub fn quiet(self) -> String {
        assert_eq!((self.status, self.stderr.as_str()), (0, ""), "{self:?}");
        self.stdout
    }

    /// Its output, as a JSON document.
    ///
    /// # Panics
    /// As [`Ran::quiet`], and if it is none.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.quiet()).unwrap()
    }

    /// The same without the messages that a look at a vCPU took too long: its thread was slow to stop, or stood still for too long. A busy host causes
    /// that: such a tick is lost, and the account has it.
    #[must_use]
    pub fn without_slow_looks(mut self) -> Self {
        const SLOW: [&str; 2] = ["The thread doesn't stop", "The vCPU was let go"];
        let lines = self.stderr.split_inclusive('\n');
        self.stderr = lines
            .filter(|line| !SLOW.iter().any(|slow| line.contains(slow)))
            .collect();
        self
    }
}

/// The program `kvmprof`: the one beside this test, built with the same profile, or else the release one.
///
/// # Panics
/// If neither has been built.
pub fn kvmprof() -> PathBuf {
    if in_lab() {
        return lab_file("kvmprof");
    }
    let test = env::current_exe().unwrap();
    // PROFILE/deps/test-0123456789abcdef
    let profile = test.ancestors().nth(2).unwrap_or(Path::new("."));
    [profile.join("kvmprof"), profile.join("../release/kvmprof")]
        .into_iter()
        .find(|program| program.is_file())
        .unwrap_or_else(|| {
            panic!(
                "there is no program kvmprof in {}: run tests/run, or cargo build --release --workspace --bins",
                profile.display()
            )
        })
}

/// A file that was put into the lab for the tests.
pub fn lab_file(name: &str) -> PathBuf {
    Path::new(LAB_FOLDER).join(name)
}

/// The independent clients in Python.
pub const EXAMPLES: [&str; 2] = ["pcs_client.py", "prf_client.py"];

/// The path of one of `EXAMPLES`.
pub fn example_path(name: &str) -> PathBuf {
    if in_lab() {
        return lab_file(name);
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/abi/examples");
    examples.join(name)
}

/// A command for the Python that runs the examples.
pub fn python() -> Command {
    let mut command = Command::new("python3");
    if in_lab() {
        command = Command::new(lab_file("python3"));
        command.env("PYTHONHOME", "/usr");
    }
    // Python must leave no files beside the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// binutils' gprof on this host.
const GPROF: &str = "/usr/bin/gprof";

/// A command for gprof, which reads histograms.
pub fn gprof() -> Command {
    if in_lab() {
        return Command::new(lab_file("gprof"));
    }
    Command::new(GPROF)
}

/// The files that the lab needs to run gprof.
pub(crate) fn gprof_for_lab() -> Vec<(PathBuf, String)> {
    let mut files = shared_libraries(Path::new(GPROF));
    files.push((PathBuf::from(GPROF), "/lab/gprof".to_owned()));
    files
}

/// Runs `kvmprof` with `arguments`, to its end, without standard input.
pub fn run<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    run_command(Command::new(kvmprof()).args(arguments))
}

/// Runs `command` to its end, without standard input.
///
/// # Panics
/// If there is no such program.
pub fn run_command(command: &mut Command) -> Ran {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    output.into()
}

/// Sends `signal` to a program that a test has started.
///
/// # Panics
/// If it has ended, and has been waited for.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Ends a program by SIGINT, and returns what it has said.
///
/// # Panics
/// As [`signal`].
pub fn interrupt(child: Child) -> Ran {
    signal(&child, Signal::INT);
    Ran::from(child.wait_with_output().unwrap())
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Checks that the program failed with one line on standard error, which contains each of `words`.
    ///
    /// # Panics
    /// If it did something else.
    #[track_caller]
    pub fn assert_refused(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.starts_with("kvmprof: "), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
    }
}

/// The files that the lab needs to run the host's Python: interpreter, libraries, standard library.
pub(crate) fn python_for_lab() -> Vec<(PathBuf, String)> {
    // Debian's own Python: other programs named python3 may be scripts that look for one.
    let interpreter = Path::new("/usr/bin/python3");
    let Ok(interpreter) = interpreter.canonicalize() else {
        return Vec::new();
    };
    let mut files = shared_libraries(&interpreter);
    files.push((interpreter, "/lab/python3".to_owned()));
    files.extend(standard_library());
    files
}

/// Parts of the library that no client needs: build files, other programs.
const LEFT_OUT: [&str; 9] = [
    "__pycache__",
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tkinter",
    "turtledemo",
];

fn standard_library() -> Vec<(PathBuf, String)> {
    let script = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .output();
    let folder = output.map(|output| output.stdout).unwrap_or_default();
    let folder = String::from_utf8_lossy(&folder).trim().to_owned();
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with("config-") && !LEFT_OUT.contains(&name.as_str()))
        .map(|name| (Path::new(&folder).join(&name), format!("{folder}/{name}")))
        .collect()
}
