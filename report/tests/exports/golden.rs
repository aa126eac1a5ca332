//! Compares each format with a golden file.

use std::path::Path;

use clap::ValueEnum;
use kvmprof_recording::Ticks;
use kvmprof_report::export::Format;
use serde_json::Value;

use super::recording::{info, recording, write};
use super::{export, unpacked};
use crate::shared::data::check;

/// The export without compression, and JSON on many lines.
fn readable(path: &Path, format: Format) -> Vec<u8> {
    let export = export(path, &[], format);
    match format {
        Format::Pprof => unpacked(&export),
        Format::Firefox => {
            let document: Value = serde_json::from_slice(&export).unwrap();
            serde_json::to_vec_pretty(&document).unwrap()
        }
        _ => export,
    }
}

#[test]
fn formats_are_as_expected() {
    let (_folder, path) = recording(1);
    for (format, file) in [
        (Format::Folded, "export.folded"),
        (Format::PerfScript, "export.perf"),
        (Format::Speedscope, "export.speedscope.json"),
        (Format::Pprof, "export.pprof"),
        (Format::Firefox, "export.firefox.json"),
        (Format::Callgrind, "export.callgrind"),
    ] {
        check(file, &readable(&path, format));
    }
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
        let export = readable(&path, *format);
        let text = String::from_utf8_lossy(&export);
        assert!(text.contains("[idle]"), "{format:?}: {text}");
        assert!(!text.contains("pid-0"), "{format:?}: {text}");
    }
    assert_eq!(readable(&path, Format::Folded), b"[idle];[halted] 5\n");
}

#[test]
fn processes_can_be_chosen() {
    let (_folder, path) = recording(1);
    let text = String::from_utf8(export(&path, &[230], Format::PerfScript)).unwrap();
    let heads = text.lines().filter(|line| line.contains("cpu-clock"));
    assert!(heads.clone().all(|line| line.contains("  230/230")));
    assert_eq!(heads.count(), 20);
}
