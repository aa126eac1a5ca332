//! Tests of exports: against golden files that were checked by hand, and with the tools that users read them with.

mod events;
mod golden;
mod host_frames;
mod hostile;
mod readers;
pub mod recording;
mod totals;

use std::path::Path;

use kvmprof_report::export::{Format, Source};

/// The export of `path` in `format`, with all processes or only `pids`.
fn export(path: &Path, pids: &[i32], format: Format) -> Vec<u8> {
    let source = Source::open(path, pids).unwrap();
    let mut out = Vec::new();
    format.write(&source, &mut out).unwrap();
    out
}
