//! Other implementations read the sinks' output: DuckDB, PyPI's opentelemetry-proto, `go tool pprof`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod down;
mod export;
mod fleet;
mod grpc;
mod lake;
mod objects;
mod prometheus;
mod push;
#[path = "../../../report/tests/shared/recordings.rs"]
mod recordings;
mod tls;
mod truth;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, Once, mpsc};

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::{SinkConfig, SinkKind};
use kvmprof_collect::sinks::{Prepared, Running};
use kvmprof_collect::spool::{Progress, Spool};
use serde_json::Value;

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Python with the receivers' packages, running `script`. tests/run installs them.
fn python(script: &str) -> Command {
    let python = root().join("target/receivers/bin/python");
    assert!(python.is_file(), "no {}: run tests/run", python.display());
    let mut command = Command::new(python);
    let script = root().join("collect/tests/receivers").join(script);
    command.arg(script).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A receiver in Python. It prints its address in the first line, and each request that it receives in a further one.
struct Receiver {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    first: String,
}

impl Receiver {
    fn run(script: &str, arguments: &[&str]) -> Self {
        let mut child = python(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // The receiver never has to wait for the test to read a line.
        std::thread::spawn(move || {
            for line in output.lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        let mut receiver = Self {
            input: child.stdin.take(),
            child,
            lines,
            first: String::new(),
        };
        receiver.first = receiver.line();
        receiver
    }

    fn line(&mut self) -> String {
        self.lines.recv().unwrap()
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with the certificates that `certificates.py` makes.
fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = python("certificates.py").arg(folder.path()).status();
    assert!(made.unwrap().success());
    folder
}

/// The logged messages. Tests in the same process share them.
static SAID: Mutex<String> = Mutex::new(String::new());

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        SAID.lock()
            .unwrap()
            .push_str(&format!("{}\n", record.args()));
    }

    fn flush(&self) {}
}

/// Starts the log at its first call. Returns all messages until now.
fn said() -> String {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Log).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
    SAID.lock().unwrap().clone()
}

/// A spool, and a sink that takes its batches. When it is dropped, the sink delivers everything in the spool, if it can.
struct SpoolWork {
    _folder: tempfile::TempDir,
    spool: Arc<Spool>,
    sink: Option<Running>,
}

impl SpoolWork {
    /// Starts a sink of this kind on a spool of at most `limit` bytes.
    fn start(kind: SinkKind, limit: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(&folder.path().join("spool"), limit, &["sink"]).unwrap();
        let spool = Arc::new(spool);
        let name = "sink".to_owned();
        let sink = Prepared::new(&SinkConfig { name, kind }).unwrap();
        let sink = sink.start(Arc::clone(&spool)).unwrap();
        Self {
            _folder: folder,
            spool,
            sink: Some(sink),
        }
    }

    /// Starts a sink of this kind on a spool that has room for all of `batches`.
    fn with(kind: SinkKind, batches: &[Batch]) -> Self {
        let work = Self::start(kind, 1 << 30);
        work.push(batches);
        work
    }

    fn push(&self, batches: &[Batch]) {
        for batch in batches {
            self.spool.push(batch).unwrap();
        }
    }

    /// Waits until `is_done` is true of the progress and of the number of batches that wait. Returns that progress.
    fn until(&self, is_done: impl Fn(&Progress, u64) -> bool) -> Progress {
        loop {
            let (_, progress, waiting) = self.spool.progress().remove(0);
            if is_done(&progress, waiting) {
                return progress;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for SpoolWork {
    fn drop(&mut self) {
        self.spool.drain();
        if let Some(sink) = self.sink.take() {
            sink.join();
        }
    }
}

/// Delivers `batches` to a sink of this kind by a spool. Returns the sink's progress as soon as `is_done` is true of it.
fn hand_over(kind: SinkKind, batches: &[Batch], is_done: impl Fn(&Progress) -> bool) -> Progress {
    let work = SpoolWork::with(kind, batches);
    work.until(|progress, _| is_done(progress))
}

/// The same until the sink has delivered all windows.
fn deliver(kind: SinkKind, batches: &[Batch]) -> Progress {
    let windows: usize = batches.iter().map(|batch| batch.windows.len()).sum();
    hand_over(kind, batches, |progress| {
        progress.delivered.windows == windows as u64
    })
}
