//! Tests of exports: against golden files that were checked by hand, and with the tools that users read them with.

mod events;
mod golden;
mod host_frames;
mod hostile;
mod readers;
pub mod recording;
mod totals;

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use kvmprof_report::export::{Format, Source, pprof_message};
use prost::Message;

/// The export of `path` in `format`, with all processes or only `pids`.
pub fn export(path: &Path, pids: &[i32], format: Format) -> Vec<u8> {
    let source = Source::open(path, pids).unwrap();
    let mut out = Vec::new();
    format.write(&source, &mut out).unwrap();
    out
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

pub fn pprof_profile(export: &[u8]) -> pprof_message::Profile {
    pprof_message::Profile::decode(&*unpacked(export)).unwrap()
}
