//! Recordings with an event as source of ticks: no format converts them to time.

use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;
use kvmprof_recording::file::{Recording, RecordingInfo};
use kvmprof_report::export::{Format, Source};
use kvmprof_report::graph::account;
use kvmprof_report::html::page_of;
use kvmprof_report::profile::Profile;
use serde_json::Value;
use tempfile::TempDir;

use super::readers::run;
use super::recording::{info, ticks, write};
use super::totals::numbers;
use super::{export, unpacked};

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

#[test]
fn no_format_converts_events_to_time() {
    let (_folder, path) = recording();
    for format in Format::value_variants() {
        if *format == Format::PerfData {
            continue;
        }
        let mut text = export(&path, &[], *format);
        if *format == Format::Pprof {
            text = unpacked(&text);
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
    let samples = Recording::open(&path)
        .unwrap()
        .read(|_, _| {})
        .unwrap()
        .account
        .samples;
    let json = |format| serde_json::from_slice::<Value>(&export(&path, &[], format)).unwrap();
    let speedscope = json(Format::Speedscope);
    let weights = speedscope["profiles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|profile| {
            assert_eq!(profile["unit"], "none");
            assert!(profile["name"].as_str().unwrap().ends_with(": mmio-write"));
            numbers(&profile["weights"]).iter().sum::<u64>()
        });
    assert_eq!(weights.sum::<u64>(), samples * 20);
    let script = String::from_utf8(export(&path, &[], Format::PerfScript)).unwrap();
    let heads = script
        .lines()
        .filter(|line| line.ends_with(" mmio-write: "));
    assert!(heads.clone().all(|line| line.contains(" 20 mmio-write")));
    assert_eq!(heads.count() as u64, samples);
    for thread in json(Format::Firefox)["threads"].as_array().unwrap() {
        let deltas = numbers(&thread["samples"]["threadCPUDelta"]);
        assert!(deltas.iter().all(|delta| *delta == 0), "{deltas:?}");
    }
}

/// The total by another program, of events of this name.
fn assert_counted(text: &str, name: &str, total: &str) {
    let total = format!("{total}{}", 20 * ticks(1).len());
    assert!(text.contains(name) && text.contains(&total), "{text}");
}

#[test]
fn go_tool_pprof_counts_events() {
    let (folder, path) = recording();
    let file = folder.path().join("exported.pb.gz");
    std::fs::write(&file, export(&path, &[], Format::Pprof)).unwrap();
    let mut pprof = Command::new("go");
    let text = run(pprof.args(["tool", "pprof", "-top"]).arg(&file));
    assert_counted(&text, "Type: mmio-write", "Total samples = ");
}

#[test]
fn perf_counts_events_by_name() {
    let (folder, path) = recording();
    let file = folder.path().join("exported.data");
    let source = Source::open(&path, &[]).unwrap();
    Format::PerfData.write_file(&source, &file).unwrap();
    let perf = |command| {
        let mut perf = Command::new("perf");
        let perf = perf.args([command, "-i"]).arg(&file);
        run(perf.env("HOME", folder.path()))
    };
    assert_counted(
        &perf("report"),
        "of event 'mmio-write'",
        "Event count (approx.): ",
    );
    let script = perf("script");
    let heads = script
        .lines()
        .filter(|line| line.contains(" 20 mmio-write:"));
    assert_eq!(heads.count(), ticks(1).len(), "{script}");
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
