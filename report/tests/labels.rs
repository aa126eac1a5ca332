//! Labels of processes are filtered, grouped and exported, for any key.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use kvmprof_recording::file::{
    Block, HEADER, Kind, ProcessLabels, Recording, RecordingInfo, SamplesEncoder, Unobserved,
    header,
};
use kvmprof_recording::{Sample, Ticks};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::export::{Format, Source, pprof_message};
use kvmprof_report::graph::{Graph, marked};
use kvmprof_report::profile::{Profile, Selection, SortBy, by_label, document, label_keys};
use kvmprof_report::symbolize::Resolver;
use prost::Message;

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
    let mut bytes = std::fs::read(path).unwrap();
    let block = |pid, time, value: &str| {
        let labels = ProcessLabels {
            pid,
            time,
            labels: BTreeMap::from([(KEY.to_owned(), value.to_owned())]),
        };
        labels.to_block().unwrap()
    };
    let blocks = [
        block(31, CHANGE, "0"),
        block(32, CHANGE, "x\n=y"),
        block(32, 1, "1000"),
    ];
    bytes.splice(HEADER..HEADER, blocks.concat());
    std::fs::write(path, bytes).unwrap();
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

fn profile(path: &Path, labels: &[&str]) -> Profile {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let selection = Selection {
        labels: labels.iter().map(|label| label.parse().unwrap()).collect(),
        ..Selection::default()
    };
    Profile::read(&recording, selection, resolver, &Unobserved).unwrap()
}

#[test]
fn a_table_has_the_samples_of_each_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels");
    write(&path);
    let profile = profile(&path, &[]);
    assert_eq!(label_keys(&profile).into_iter().collect::<Vec<_>>(), [KEY]);
    let rows = by_label(&profile, KEY);
    assert!(rows.is_sorted_by_key(|row| u64::MAX - row.modes.iter().sum::<u64>()));
    let rows = rows.iter();
    let rows: BTreeMap<Option<&str>, u64> = rows
        .map(|row| (row.value.as_deref(), row.modes.iter().sum()))
        .collect();
    assert_eq!(rows, counted(&path));
    assert_eq!(rows.values().sum::<u64>(), profile.samples());
    let document = document(&profile, SortBy::Own, 10);
    assert_eq!(
        document["labels"][KEY].as_array().unwrap().len(),
        rows.len()
    );
}

#[test]
fn flame_graph_processes_are_above_the_label_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels");
    write(&path);
    let profile = profile(&path, &[]);
    let lines = marked(&profile, &[KEY.to_owned()], &OutputBudget::new(u64::MAX)).unwrap();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for line in &lines {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let mut frames = stack.split(';');
        *counts.entry(frames.next().unwrap()).or_default() += count.parse::<u64>().unwrap();
        let process = frames.next().unwrap().trim_end_matches(is_mark);
        let pid = process.rsplit_once('-').map(|(_, pid)| pid);
        let is_known = ["31", "32"].contains(&pid.unwrap_or_default());
        assert_eq!(!stack.starts_with("a key=[none]"), is_known, "{line}");
    }
    let counts: BTreeMap<String, u64> = counts
        .into_iter()
        .map(|(group, count)| (group.replace(is_mark, ""), count))
        .collect();
    let expected = counted(&path).into_iter();
    let expected: BTreeMap<String, u64> = expected
        .map(|(value, count)| (format!("{KEY}={}", value.unwrap_or("[none]")), count))
        .collect();
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels");
    write(&path);
    let profile = profile(&path, &[]);
    let budget = || OutputBudget::new(u64::MAX);
    let one = marked(&profile, &[KEY.to_owned()], &budget()).unwrap();
    let two = marked(&profile, &[KEY.to_owned(), "other".to_owned()], &budget()).unwrap();
    let without = |line: &String| {
        let line = line.replace(is_mark, "");
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let frames: Vec<&str> = stack.split(';').collect();
        assert_eq!(frames[1], "other=[none]", "{line}");
        format!("{};{} {count}", frames[0], frames[2..].join(";"))
    };
    let two: BTreeMap<String, ()> = two.iter().map(|line| (without(line), ())).collect();
    let one = one.iter().map(|line| (line.replace(is_mark, ""), ()));
    assert_eq!(two, one.collect());
}

/// Whether it is a mark for colours.
fn is_mark(letter: char) -> bool {
    ('\u{e000}'..'\u{f000}').contains(&letter)
}

#[test]
fn samples_are_chosen_by_their_label() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels");
    write(&path);
    let counted = counted(&path);
    for (value, count) in &counted {
        let Some(value) = value else { continue };
        let profile = profile(&path, &[&format!("{KEY}={value}")]);
        assert_eq!(profile.samples(), *count, "{value}");
        assert_eq!(profile.idle, 0);
    }
    for nothing in ["a key=", "key=0", "a key=1"] {
        assert_eq!(profile(&path, &[nothing]).samples(), 0, "{nothing}");
    }
    let both = ["a key=0", "a key=1000"];
    assert_eq!(profile(&path, &both).samples(), 0);
}

#[test]
fn pprof_has_the_labels() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels");
    write(&path);
    let mut packed = Vec::new();
    let source = Source::open(&path, &[]).unwrap();
    Format::Pprof.write(&source, &mut packed).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice())
        .read_to_end(&mut bytes)
        .unwrap();
    let read = pprof_message::Profile::decode(bytes.as_slice()).unwrap();
    let text = |number: i64| read.string_table[usize::try_from(number).unwrap()].as_str();
    let mut counts: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for sample in &read.sample {
        let mut labels = sample.label.iter();
        let label = labels.find(|label| text(label.key) == KEY);
        let count = u64::try_from(sample.value[0]).unwrap();
        *counts
            .entry(label.map(|label| text(label.str)))
            .or_default() += count;
    }
    assert_eq!(counts, counted(&path));
}

/// 10,000 groups with names of 4 KiB and with characters that act: each is a row, all ticks are counted, and nothing acts.
#[test]
fn endless_groups_are_counted_and_shown_as_text() {
    const GROUPS: i32 = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("groups");
    let info = serde_json::to_vec(&RecordingInfo {
        hz: 100,
        ..RecordingInfo::default()
    });
    let mut bytes = [
        header().to_vec(),
        Block::encode(Kind::Info, &info.unwrap()).unwrap(),
    ]
    .concat();
    let mut samples = SamplesEncoder::default();
    for pid in 1..=GROUPS {
        let name = format!("/{pid}\n\"\u{202e}\u{1b}[2J;{}", "x".repeat(4080));
        let labels = ProcessLabels {
            pid,
            time: 0,
            labels: BTreeMap::from([("cgroup".to_owned(), name)]),
        };
        bytes.extend(labels.to_block().unwrap());
        let sample = Sample {
            pid,
            time: u64::from(pid.unsigned_abs()),
            ..Sample::default()
        };
        let ticks = Ticks {
            sample: Some(sample),
            ..Ticks::default()
        };
        samples.push(&ticks, &[]);
    }
    bytes.extend(Block::encode(Kind::Samples, &samples.take().bytes).unwrap());
    std::fs::write(&path, bytes).unwrap();
    let profile = profile(&path, &[]);
    let rows = by_label(&profile, "cgroup");
    assert_eq!(rows.len(), GROUPS.unsigned_abs() as usize);
    let counted: u64 = rows.iter().flat_map(|row| row.modes).sum();
    assert_eq!(counted, u64::from(GROUPS.unsigned_abs()));
    let acts = |letter: char| letter.is_control() || letter == '\u{202e}';
    assert!(rows.iter().all(|row| !row.shown_value().contains(acts)));
    let by = ["cgroup".to_owned()];
    let lines = marked(&profile, &by, &OutputBudget::new(u64::MAX)).unwrap();
    let counts = lines.iter().map(|line| line.rsplit_once(' ').unwrap().1);
    let counted: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
    assert_eq!(counted, u64::from(GROUPS.unsigned_abs()));
    // A group's name is one frame: groups, processes, functions.
    assert!(lines.iter().all(|line| line.matches(';').count() == 2));
    assert!(marked(&profile, &by, &OutputBudget::new(1 << 20)).is_err());
}
