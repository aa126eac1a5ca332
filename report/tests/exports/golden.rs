//! Compares each format with a golden file.

use std::io::Read;

use flate2::read::GzDecoder;
use kvmprof_report::export::Format;

use crate::data::check;
use crate::export;
use crate::recording::recording;

#[test]
fn folded() {
    let (_folder, path) = recording(1);
    check("export.folded", &export(&path, &[], Format::Folded));
}

#[test]
fn perf_script() {
    let (_folder, path) = recording(1);
    check("export.perf", &export(&path, &[], Format::PerfScript));
}

#[test]
fn speedscope() {
    let (_folder, path) = recording(1);
    let document = export(&path, &[], Format::Speedscope);
    serde_json::from_slice::<serde_json::Value>(&document).unwrap();
    check("export.speedscope.json", &document);
}

#[test]
fn pprof() {
    let (_folder, path) = recording(1);
    let mut message = Vec::new();
    let packed = export(&path, &[], Format::Pprof);
    GzDecoder::new(packed.as_slice())
        .read_to_end(&mut message)
        .unwrap();
    check("export.pprof", &message);
}

#[test]
fn firefox() {
    let (_folder, path) = recording(1);
    let document = export(&path, &[], Format::Firefox);
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    let text = serde_json::to_vec_pretty(&document).unwrap();
    check("export.firefox.json", &text);
}

#[test]
fn callgrind() {
    let (_folder, path) = recording(1);
    check("export.callgrind", &export(&path, &[], Format::Callgrind));
}

#[test]
fn processes_can_be_chosen() {
    let (_folder, path) = recording(1);
    let text = String::from_utf8(export(&path, &[230], Format::PerfScript)).unwrap();
    let heads: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("cpu-clock"))
        .collect();
    assert_eq!(heads.len(), 20);
    assert!(heads.iter().all(|line| line.contains("  230/230")));
}
