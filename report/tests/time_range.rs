//! A time range of a recording: blocks of samples outside of it aren't unpacked, and the result is the same as if all were read.

use std::path::Path;

use crate::shared::read::selection;
use crate::shared::walk;
use kvmprof_recording::file::{Block, HEADER, Kind, Recording, Unobserved};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::export::{Events, Format, Source};
use kvmprof_report::profile::{Profile, SortBy, document, folded};
use kvmprof_report::stalls::{StallWatcher, Stalls};
use kvmprof_report::symbolize::Resolver;

/// The recording at `path` as earlier versions made it, without the times of its blocks.
fn without_times(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let (header, mut rest) = bytes.split_at(HEADER);
    let mut kept = header.to_vec();
    while let Some(block) = Block::decode(rest) {
        let (bytes, next) = rest.split_at(block.length);
        if block.kind != Some(Kind::Times) {
            kept.extend(bytes);
        }
        rest = next;
    }
    assert!(rest.is_empty() && kept.len() < bytes.len());
    kept
}

/// All output of reports and exports for `time`, and the number of bytes unpacked for it.
fn said(recording: Recording, time: &str) -> (Vec<String>, u64) {
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let selection = selection(&["--time", time]);
    let mut watcher = (StallWatcher::default(), Events::new(None));
    let before = recording.unpacked();
    let profile =
        Profile::read_with(&recording, selection, resolver, &Unobserved, &mut watcher).unwrap();
    let unpacked = recording.unpacked() - before;
    let budget = OutputBudget::new(u64::MAX);
    let (stalls, events) = watcher;
    let stalls = Stalls::new(&profile, stalls, 1000, &budget).unwrap();
    let stalls = serde_json::to_string(&stalls).unwrap();
    let mut said = folded(&profile, &budget).unwrap();
    let mut facts = document(&profile, SortBy::default(), usize::MAX);
    facts.as_object_mut().unwrap().remove("bytes");
    said.extend([facts.to_string(), stalls]);
    let source = Source::new(recording, profile, events).unwrap();
    let mut export = Vec::new();
    Format::Speedscope.write(&source, &mut export).unwrap();
    said.push(String::from_utf8(export).unwrap());
    (said, unpacked)
}

#[test]
fn a_time_range_equals_filtering_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    for seed in 1..5 {
        walk::write(&path, seed, 20_000);
        let old = without_times(&path);
        for time in "0:1 20:20.5 30.004:30.008 17:41 55: :3 1000:".split(' ') {
            let (with, _) = said(Recording::open(&path).unwrap(), time);
            let (without, _) = said(Recording::from_bytes(&path, old.clone()).unwrap(), time);
            assert!(with == without, "{time} of {seed}");
        }
    }
}

#[test]
fn only_blocks_of_that_time_are_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    walk::write(&path, 7, 40_000);
    let old = without_times(&path);
    let unpacked = |time: &str| said(Recording::open(&path).unwrap(), time).1;
    let all = unpacked(":");
    let part = unpacked("60:62");
    assert!(part > 0 && part * 20 < all, "{part} of {all} bytes");
    let (_, earlier) = said(Recording::from_bytes(&path, old).unwrap(), "60:62");
    assert!(earlier > all / 2, "{earlier} of {all} bytes");
}
