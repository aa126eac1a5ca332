//! What sinks hand over, read by other implementations: DuckDB, PyPI's opentelemetry-proto, `go tool pprof`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod fleet;
mod lake;
mod prometheus;
mod push;
mod truth;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::{SinkConfig, SinkKind};
use kvmprof_collect::sinks::Running;
use kvmprof_collect::spool::{Progress, Spool};

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Python with the receivers' packages, which tests/run installs.
fn python(script: &str) -> Command {
    let python = root().join("target/receivers/bin/python");
    assert!(python.is_file(), "no {}: run tests/run", python.display());
    let mut command = Command::new(python);
    let script = root().join("collect/tests/receivers").join(script);
    command.arg(script).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Hands `batches` over to a sink of this kind, by a spool, and returns how far it came when `is_done` first said so.
fn hand_over(kind: SinkKind, batches: &[Batch], is_done: impl Fn(&Progress) -> bool) -> Progress {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("spool"), 1 << 30, &["sink"]).unwrap();
    let spool = Arc::new(spool);
    for batch in batches {
        spool.push(batch).unwrap();
    }
    let name = "sink".to_owned();
    let sink = Running::start(&SinkConfig { name, kind }, Arc::clone(&spool)).unwrap();
    let progress = loop {
        let progress = spool.progress()[0].1;
        if is_done(&progress) {
            break progress;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    spool.close();
    sink.join();
    progress
}
