//! Recordings with an event as source of ticks: no format converts them to time.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use flate2::read::GzDecoder;
use kvmprof_recording::file::{Recording, RecordingInfo};
use kvmprof_report::export::{Format, Source};
use kvmprof_report::graph::account;
use kvmprof_report::html::page_of;
use kvmprof_report::profile::Profile;
use serde_json::Value;
use tempfile::TempDir;

use super::export;
use super::readers::run;
use super::recording::{info, ticks, write};

/// A recording of every twentieth MMIO write.
fn recording() -> (TempDir, PathBuf) {
    let info = RecordingInfo {
        hz: 0,
        event: Some("mmio-write:20".parse().unwrap()),
        ..info()
    };
    let sampled = ticks(1).into_iter().map(|(mut ticks, frames)| {
        (ticks.idle, ticks.stolen) = (0, 0);
        (ticks, frames)
    });
    write(&info, &sampled.collect::<Vec<_>>())
}

fn samples(path: &Path) -> u64 {
    let contents = Recording::open(path).unwrap().read(|_, _| {}).unwrap();
    contents.account.samples
}

/// The numbers of a JSON array.
fn sum(numbers: &Value) -> u64 {
    let numbers = numbers.as_array().unwrap().iter();
    numbers.map(|number| number.as_u64().unwrap()).sum()
}

#[test]
fn no_format_converts_events_to_time() {
    let (_folder, path) = recording();
    for format in Format::value_variants() {
        if *format == Format::PerfData {
            continue;
        }
        let out = export(&path, &[], *format);
        let mut text = out.clone();
        if *format == Format::Pprof {
            text.clear();
            GzDecoder::new(&*out).read_to_end(&mut text).unwrap();
        }
        let text = String::from_utf8_lossy(&text);
        for wrong in ["nanoseconds", "cpu-clock", " Hz"] {
            assert!(!text.contains(wrong), "{format:?} has {wrong}");
        }
        let named = ["mmio-write", "one of every 20 MMIO writes"];
        let is_named = named.iter().any(|name| text.contains(name));
        assert!(is_named || *format == Format::Folded, "{format:?}");
    }
}

#[test]
fn formats_with_weights_have_the_number_of_events() {
    let (_folder, path) = recording();
    let events = samples(&path) * 20;
    let speedscope: Value =
        serde_json::from_slice(&export(&path, &[], Format::Speedscope)).unwrap();
    let profiles = speedscope["profiles"].as_array().unwrap();
    let weights = profiles.iter().map(|profile| {
        assert_eq!(profile["unit"], "none");
        assert!(profile["name"].as_str().unwrap().ends_with(": mmio-write"));
        sum(&profile["weights"])
    });
    assert_eq!(weights.sum::<u64>(), events);
    let script = String::from_utf8(export(&path, &[], Format::PerfScript)).unwrap();
    let heads = script
        .lines()
        .filter(|line| line.ends_with(" mmio-write: "));
    assert!(heads.clone().all(|line| line.contains(" 20 mmio-write")));
    assert_eq!(heads.count() as u64, samples(&path));
    let firefox: Value = serde_json::from_slice(&export(&path, &[], Format::Firefox)).unwrap();
    let threads = firefox["threads"].as_array().unwrap();
    for thread in threads {
        let deltas = thread["samples"]["threadCPUDelta"].as_array().unwrap();
        assert!(deltas.iter().all(|delta| *delta == 0), "{deltas:?}");
    }
}

#[test]
fn go_tool_pprof_counts_events() {
    let (folder, path) = recording();
    let file = folder.path().join("exported.pb.gz");
    std::fs::write(&file, export(&path, &[], Format::Pprof)).unwrap();
    let text = run(Command::new("go")
        .args(["tool", "pprof", "-top"])
        .arg(&file));
    assert!(text.contains("Type: mmio-write"), "{text}");
    let total = format!("Total samples = {}", samples(&path) * 20);
    assert!(text.contains(&total), "{total}: {text}");
}

#[test]
fn perf_counts_events_by_name() {
    let (folder, path) = recording();
    let file = folder.path().join("exported.data");
    let source = Source::open(&path, &[]).unwrap();
    Format::PerfData.write_file(&source, &file).unwrap();
    let perf = |command| {
        let mut perf = Command::new("perf");
        run(perf
            .args([command, "-i"])
            .arg(&file)
            .env("HOME", folder.path()))
    };
    let report = perf("report");
    assert!(report.contains("of event 'mmio-write'"), "{report}");
    let total = format!("Event count (approx.): {}", samples(&path) * 20);
    assert!(report.contains(&total), "{total}: {report}");
    let script = perf("script");
    let heads = script
        .lines()
        .filter(|line| line.contains(" 20 mmio-write:"));
    assert_eq!(heads.count() as u64, samples(&path), "{script}");
}

#[test]
fn reports_name_the_event() {
    let (_folder, path) = recording();
    let recording = Recording::open(&path).unwrap();
    let profile = Profile::from_recording(&recording, &[]).unwrap();
    let words = "one of every 20 MMIO writes";
    let below_the_title = account(&profile);
    assert!(below_the_title.contains(words), "{below_the_title}");
    let html = page_of(&recording, &[], "title").unwrap();
    assert!(html.contains(words) && !html.contains(" Hz"));
}
