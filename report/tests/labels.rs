//! Labels of processes are filtered, grouped and exported, for any key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kvmprof_recording::Sample;
use kvmprof_recording::file::{HEADER, ProcessLabels, Recording};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::export::Format;
use kvmprof_report::graph::{Graph, marked};
use kvmprof_report::profile::{
    Grouping, Layout, Levels, Profile, SortBy, by_label, document, label_keys,
};
use tempfile::TempDir;

use crate::exports::{export, pprof_profile};
use crate::shared::read::{printed, profile};
use crate::shared::recordings::Written;
use crate::shared::walk;

/// When a process of the recording changes its label, in ns of CLOCK_MONOTONIC.
const CHANGE: u64 = 9_000_000_000;
pub const KEY: &str = "a key";

/// The label that process `pid` has at `time`.
fn label(pid: i32, time: u64) -> Option<&'static str> {
    match pid {
        31 => Some("0"),
        32 if time < CHANGE => Some("1000"),
        32 => Some("x\u{fffd}=y"),
        _ => None,
    }
}

/// A recording with these labels.
pub fn write(path: &Path) {
    walk::write(path, 3, 5000);
    let labels = [(31, CHANGE, "0"), (32, CHANGE, "x\n=y"), (32, 1, "1000")];
    add(
        path,
        KEY,
        labels.map(|(pid, time, value)| (pid, time, value.to_owned())),
    );
}

/// Adds labels of processes since these times to the recording.
fn add(path: &Path, key: &str, labels: impl IntoIterator<Item = (i32, u64, String)>) {
    let blocks = labels.into_iter().flat_map(|(pid, time, value)| {
        let labels = BTreeMap::from([(key.to_owned(), value)]);
        ProcessLabels { pid, time, labels }.to_block().unwrap()
    });
    let mut bytes = std::fs::read(path).unwrap();
    bytes.splice(HEADER..HEADER, blocks);
    std::fs::write(path, bytes).unwrap();
}

pub fn recording() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels");
    write(&path);
    (folder, path)
}

/// The recording's samples by label, except idle ticks.
fn counted(path: &Path) -> BTreeMap<Option<&'static str>, u64> {
    let mut counts = BTreeMap::new();
    let recording = Recording::open(path).unwrap();
    let read = recording.read(|ticks, _| {
        if let Some(sample) = &ticks.sample {
            *counts.entry(label(sample.pid, sample.time)).or_default() += 1;
        }
    });
    let idle = read.unwrap().account.idle;
    *counts.entry(None).or_default() += idle;
    counts
}

/// The lines of a flame graph grouped by these keys.
fn grouped(profile: &Profile, keys: &[&str]) -> Vec<String> {
    let by = Levels::named(keys.iter().copied()).unwrap();
    marked(profile, &by, &OutputBudget::new(u64::MAX)).unwrap()
}

#[test]
fn a_table_has_the_samples_of_each_value() {
    let (_folder, path) = recording();
    let profile = profile(&path, &[]);
    assert_eq!(label_keys(&profile).into_iter().collect::<Vec<_>>(), [KEY]);
    let rows = by_label(&profile, KEY);
    assert!(rows.is_sorted_by_key(|row| u64::MAX - row.modes.iter().sum::<u64>()));
    let counts = rows
        .iter()
        .map(|row| (row.value.as_deref(), row.modes.iter().sum()));
    let rows: BTreeMap<Option<&str>, u64> = counts.collect();
    assert_eq!(rows, counted(&path));
    assert_eq!(rows.values().sum::<u64>(), profile.samples());
    let document = document(&profile, SortBy::Own, 10);
    let table = document["labels"][KEY].as_array().unwrap();
    assert_eq!(table.len(), rows.len());
}

#[test]
fn flame_graph_processes_are_above_the_label_values() {
    let (_folder, path) = recording();
    let profile = profile(&path, &[]);
    let lines = grouped(&profile, &[KEY]);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in &lines {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let mut frames = stack.split(';');
        let group = frames.next().unwrap().replace(is_mark, "");
        *counts.entry(group).or_default() += count.parse::<u64>().unwrap();
        let process = frames.next().unwrap().trim_end_matches(is_mark);
        let pid = process.rsplit_once('-').map(|(_, pid)| pid);
        let is_known = ["31", "32"].contains(&pid.unwrap_or_default());
        assert_eq!(!stack.starts_with("a key=[none]"), is_known, "{line}");
    }
    let group = |value: Option<&str>| format!("{KEY}={}", value.unwrap_or("[none]"));
    let expected = counted(&path)
        .into_iter()
        .map(|(value, count)| (group(value), count));
    let expected: BTreeMap<String, u64> = expected.collect();
    assert_eq!(counts, expected);
    // Frames that aren't functions have the colour of groups.
    let svg = Graph::default().draw(&lines).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let line = lines.iter().find(|line| line.starts_with("a key=0"));
    let frames = line.unwrap().split(';').take(2);
    for name in frames.map(|name| name.replace(is_mark, "")) {
        let (_, frame) = svg.split_once(&format!("<title>{name} (")).unwrap();
        let (_, fill) = frame.split_once("fill=\"").unwrap();
        assert!(fill.starts_with("rgb(223,227,232)"), "{name}");
    }
}

/// Frames of a second key stand on those of the first one, and lose no ticks.
#[test]
fn flame_graphs_have_several_levels_of_groups() {
    let (_folder, path) = recording();
    let profile = profile(&path, &[]);
    let (one, two) = (
        grouped(&profile, &[KEY]),
        grouped(&profile, &[KEY, "other"]),
    );
    let without = |line: &String| {
        let line = line.replace(is_mark, "");
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let frames: Vec<&str> = stack.split(';').collect();
        assert_eq!(frames[1], "other=[none]", "{line}");
        format!("{};{} {count}", frames[0], frames[2..].join(";"))
    };
    let two: BTreeSet<String> = two.iter().map(without).collect();
    let one = one.iter().map(|line| line.replace(is_mark, ""));
    assert_eq!(two, one.collect());
}

/// Whether it is a mark for colours.
pub fn is_mark(letter: char) -> bool {
    ('\u{e000}'..'\u{f000}').contains(&letter)
}

#[test]
fn threads_have_their_ids_in_containers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("threads");
    let mut written = Written::with_symbols("");
    for (time, tid, inner_tid) in [(1, 41, Some(1)), (2, 44, Some(3)), (3, 50, None)] {
        for _ in 0..2 {
            let sample = Sample {
                time,
                pid: 41,
                tid,
                inner_tid,
                ..Sample::default()
            };
            written.push(&sample.into(), &[]);
        }
    }
    written.write(&path);
    let profile = profile(&path, &[]);
    let document = document(&profile, SortBy::Own, 10);
    let threads = document["threads"].as_array().unwrap().iter();
    let ids: Vec<_> = threads
        .map(|row| (row["tid"].as_i64().unwrap(), row["inner_tid"].as_i64()))
        .collect();
    assert_eq!(ids, [(41, Some(1)), (44, Some(3)), (50, None)]);
    let layout = Layout {
        tables: vec![Grouping::Thread.into()],
        top: 10,
        ..Layout::default()
    };
    let text = printed(&profile, &layout);
    for line in [
        "      PID      TID    INNER  THREAD  ",
        "       41       44        3  ",
        "       41       50        -  ",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn samples_are_chosen_by_their_label() {
    let (_folder, path) = recording();
    let counted = counted(&path);
    for (value, count) in &counted {
        let Some(value) = value else { continue };
        let profile = profile(&path, &["--label", &format!("{KEY}={value}")]);
        assert_eq!(profile.samples(), *count, "{value}");
        assert_eq!(profile.idle, 0);
    }
    for nothing in [
        &["a key="][..],
        &["key=0"],
        &["a key=1"],
        &["a key=0", "a key=1000"],
    ] {
        let options: Vec<&str> = nothing
            .iter()
            .flat_map(|label| ["--label", label])
            .collect();
        assert_eq!(profile(&path, &options).samples(), 0, "{nothing:?}");
    }
}

#[test]
fn pprof_has_the_labels() {
    let (_folder, path) = recording();
    let read = pprof_profile(&export(&path, &[], Format::Pprof));
    let text = |number: i64| read.string_table[usize::try_from(number).unwrap()].as_str();
    let mut counts: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for sample in &read.sample {
        let mut labels = sample.label.iter();
        let label = labels.find(|label| text(label.key) == KEY);
        let value = label.map(|label| text(label.str));
        *counts.entry(value).or_default() += u64::try_from(sample.value[0]).unwrap();
    }
    assert_eq!(counts, counted(&path));
}

/// 10,000 groups with names of 4 KiB and with characters that act: each is a row, all ticks are counted, and nothing acts.
#[test]
fn endless_groups_are_counted_and_shown_as_text() {
    const GROUPS: u64 = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("groups");
    let mut written = Written::with_symbols("");
    for (pid, time) in (1..).zip(0..GROUPS) {
        let sample = Sample {
            pid,
            time,
            ..Sample::default()
        };
        written.push(&sample.into(), &[]);
    }
    written.write(&path);
    let name = |pid| format!("/{pid}\n\"\u{202e}\u{1b}[2J;{}", "x".repeat(4080));
    add(
        &path,
        "cgroup",
        (1..).take(10_000).map(|pid| (pid, 0, name(pid))),
    );
    let profile = profile(&path, &[]);
    let rows = by_label(&profile, "cgroup");
    assert_eq!(rows.len() as u64, GROUPS);
    assert_eq!(rows.iter().flat_map(|row| row.modes).sum::<u64>(), GROUPS);
    let acts = |letter: char| letter.is_control() || letter == '\u{202e}';
    assert!(rows.iter().all(|row| !row.shown_value().contains(acts)));
    let lines = grouped(&profile, &["cgroup"]);
    let counts = lines.iter().map(|line| line.rsplit_once(' ').unwrap().1);
    let counted: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
    assert_eq!(counted, GROUPS);
    // A group's name is one frame: groups, processes, functions.
    assert!(lines.iter().all(|line| line.matches(';').count() == 2));
    let by = Levels::named(["cgroup"]).unwrap();
    assert!(marked(&profile, &by, &OutputBudget::new(1 << 20)).is_err());
}
