//! Exports, held against files that were looked at by hand, and read by the tools that people use.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "../shared/browser.rs"]
mod browser;
#[path = "../shared/data.rs"]
mod data;
mod golden;
mod hostile;
mod readers;
mod recording;

use std::path::Path;

use kvmprof_report::export::{Format, Source};

/// `path` in `format`, of all processes or of `pids`.
fn export(path: &Path, pids: &[i32], format: Format) -> Vec<u8> {
    let source = Source::open(path, pids).unwrap();
    let mut out = Vec::new();
    format.write(&source, &mut out).unwrap();
    out
}
