//! Compares each format with a golden file.

use std::io::Read;

use clap::ValueEnum;
use flate2::read::GzDecoder;
use kvmprof_recording::Ticks;
use kvmprof_report::export::Format;

use super::export;
use super::recording::{info, recording, write};
use crate::shared::data::check;

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

/// No sample tells the guest's name for process 0 here.
#[test]
fn halted_vcpus_alone_have_one_name() {
    let ticks = Ticks {
        idle: 5,
        ..Ticks::default()
    };
    let (_folder, path) = write(&info(), &[(ticks, Vec::new())]);
    let formats = Format::value_variants().iter();
    for format in formats.filter(|format| **format != Format::PerfData) {
        let mut text = export(&path, &[], *format);
        if *format == Format::Pprof {
            let packed = std::mem::take(&mut text);
            GzDecoder::new(packed.as_slice())
                .read_to_end(&mut text)
                .unwrap();
        }
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("[idle]"), "{format:?}: {text}");
        assert!(!text.contains("pid-0"), "{format:?}: {text}");
    }
    let folded = export(&path, &[], Format::Folded);
    assert_eq!(folded, b"[idle];[halted] 5\n");
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
