//! Several recordings that are counted together, and the filters.

use std::collections::BTreeMap;
use std::path::Path;

use crate::shared::walk;
use kvmprof_recording::file::{
    Account, Block, Kind, Recording, RecordingInfo, SamplesEncoder, Unobserved, header,
};
use kvmprof_recording::{COMM_LENGTH, Mode, Sample, Ticks};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::model::Counts;
use kvmprof_report::profile::{
    Layout, Profile, Section, Selection, SortBy, document, folded, functions, print,
};
use kvmprof_report::symbolize::Resolver;
use serde_json::Value;

fn read(path: &Path, selection: Selection) -> Profile {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let counts = &mut Counts::default();
    let profile = Profile::read_with(&recording, selection, resolver, &Unobserved, counts);
    Profile {
        file: path.display().to_string(),
        ..profile.unwrap()
    }
}

/// Two recordings of the same processes, and both together.
fn both(selection: &Selection) -> ([Profile; 2], Profile) {
    let folder = tempfile::tempdir().unwrap();
    let all = || {
        [5, 6].map(|seed| {
            let path = folder.path().join(seed.to_string());
            walk::write(&path, seed, 2000 * seed);
            read(&path, selection.clone())
        })
    };
    (all(), Profile::merge(all().into()).unwrap())
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// The sums of `name` in the rows of both documents, by the columns that identify rows.
fn added(documents: &[Value; 2], table: &str, keys: &[&str], name: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in documents
        .iter()
        .flat_map(|one| one[table].as_array().unwrap())
    {
        let key = keys.iter().map(|key| row[key].to_string() + " ");
        *sums.entry(key.collect()).or_default() += count(&row[name]);
    }
    sums
}

#[test]
fn sums_of_recordings_add_up() {
    let ([one, other], merged) = both(&Selection::default());
    let parts = [&one, &other].map(|one| document(one, SortBy::Own, usize::MAX));
    let whole = document(&merged, SortBy::Own, usize::MAX);
    let of = |name: &str| {
        parts
            .iter()
            .map(|part| count(&part["account"][name]))
            .sum::<u64>()
    };
    for name in ["ticks", "samples", "idle", "stolen", "lost", "ungathered"] {
        assert_eq!(count(&whole["account"][name]), of(name), "{name}");
    }
    let account: Account = serde_json::from_value(whole["account"].clone()).unwrap();
    assert!(account.balances() && account.ticks > 0);
    assert_eq!(merged.samples(), one.samples() + other.samples());
    for (table, keys, name) in [
        ("functions", &["name", "module", "kernel"][..], "self"),
        ("functions", &["name", "module", "kernel"], "total"),
        ("modules", &["name"], "total"),
        ("vcpus", &["vcpu"], "samples"),
    ] {
        let rows = [whole.clone(), Value::Null];
        let found = added(
            &[rows[0].clone(), serde_json::json!({ table: [] })],
            table,
            keys,
            name,
        );
        assert_eq!(found, added(&parts, table, keys, name), "{table}");
    }
    let ticks = |lines: &[String]| -> u64 {
        let counts = lines.iter().map(|line| line.rsplit_once(' ').unwrap().1);
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    };
    assert_eq!(
        ticks(&folded(&merged, &OutputBudget::new(u64::MAX)).unwrap()),
        merged.samples()
    );
}

#[test]
fn processes_of_different_guests_stay_apart() {
    let ([one, other], merged) = both(&Selection::default());
    let whole = document(&merged, SortBy::Own, 5);
    for table in ["processes", "threads"] {
        let rows = whole[table].as_array().unwrap();
        for (number, part) in [&one, &other].into_iter().enumerate() {
            let part = document(part, SortBy::Own, 5);
            for row in part[table].as_array().unwrap() {
                let mut same = rows.iter().filter(|found| {
                    found["recording"] == number
                        && found["pid"] == row["pid"]
                        && found["tid"] == row["tid"]
                });
                assert_eq!(same.next().unwrap()["samples"], row["samples"], "{row}");
                assert!(same.next().is_none());
            }
        }
    }
    let lines = folded(&merged, &OutputBudget::new(u64::MAX)).unwrap();
    let has = |text: &str| lines.iter().any(|line| line.starts_with(text));
    assert!(
        has("walker 32-32 (1);") && has("walker 32-32 (2);"),
        "{lines:#?}"
    );
    let layout = Layout {
        sections: vec![Section::Process, Section::Thread],
        top: 100,
        ..Layout::default()
    };
    let mut out = Vec::new();
    print(&merged, &layout, &[], &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.starts_with("(1) /") && text.contains("\n(2) /"),
        "{text}"
    );
    assert!(text.contains("\nAll 2 together: "), "{text}");
    for number in 1..3 {
        let process = format!("     ({number})       32  walker 32 ");
        assert!(text.contains(&process), "{text}");
        let thread = format!("     ({number})       32      232  walker 232 ");
        assert!(text.contains(&thread), "{text}");
    }
}

#[test]
fn other_ticks_are_refused() {
    let ([one, mut other], _) = both(&Selection::default());
    other.contents.info.hz = 1000;
    let refused = Profile::merge(vec![one, other]).unwrap_err().to_string();
    for part in ["250 Hz", "1000 Hz", "/5 ", "/6 ", "--hz"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

/// The samples that a selection should leave, one by one.
fn naive(path: &Path, is_wanted: impl Fn(&kvmprof_recording::Sample, &[u64]) -> bool) -> u64 {
    let recording = Recording::open(path).unwrap();
    let mut found = 0;
    recording
        .read(|ticks, frames| {
            found += u64::from(
                ticks
                    .sample
                    .is_some_and(|sample| is_wanted(&sample, frames)),
            );
        })
        .unwrap();
    found
}

/// A shell that executes another program, and another shell.
#[test]
fn a_process_that_executes_another_program_counts_under_both_names() {
    let mut encoder = SamplesEncoder::default();
    let runs = [(7, "sh", 3_u64), (8, "sh", 2), (7, "make", 5)];
    let mut time = 0;
    for (pid, name, count) in runs {
        let mut comm = [0; COMM_LENGTH];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        for _ in 0..count {
            time += 10_000_000;
            let sample = Sample {
                time,
                pid,
                tid: pid,
                comm,
                ..Sample::default()
            };
            let ticks = Ticks {
                sample: Some(sample),
                ..Ticks::default()
            };
            encoder.push(&ticks, &[]);
        }
    }
    let info = RecordingInfo {
        vcpus: 1,
        hz: 100,
        ..RecordingInfo::default()
    };
    let mut bytes = header().to_vec();
    let info = serde_json::to_vec(&info).unwrap();
    bytes.extend(Block::encode(Kind::Info, &info).unwrap());
    bytes.extend(Block::encode(Kind::Samples, &encoder.take().bytes).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    std::fs::write(&path, bytes).unwrap();
    for (name, expected) in [("sh", 10), ("make", 8), ("mak", 0)] {
        let selection = Selection {
            comms: vec![name.to_owned()],
            ..Selection::default()
        };
        assert_eq!(read(&path, selection).samples(), expected, "{name}");
    }
}

#[test]
fn filters_combine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    walk::write(&path, 9, 4000);
    let mut comm = [0; COMM_LENGTH];
    comm[..10].copy_from_slice(b"walker 132");
    let mut of_name = std::collections::BTreeSet::new();
    let recording = Recording::open(&path).unwrap();
    let note = |ticks: &kvmprof_recording::Ticks, _: &[u64]| {
        of_name.extend(
            ticks
                .sample
                .filter(|sample| sample.comm == comm)
                .map(|sample| sample.pid),
        );
    };
    recording.read(note).unwrap();
    assert!(of_name.contains(&32));
    // walk::KERNEL's third and sixth function.
    let is_found = |frames: &[u64]| {
        let functions = frames
            .iter()
            .map(|frame| frame.wrapping_sub(0xffff_ffff_8100_0000) / 0x100);
        functions
            .clone()
            .any(|function| function == 2 || function == 5)
    };
    let all = Selection {
        pids: vec![31, 32],
        comms: vec!["walker 132".to_owned()],
        vcpus: vec![1],
        modes: vec![Mode::Kernel],
        grep: Some("^(copy|walk)_".parse().unwrap()),
        ..Selection::default()
    };
    let expected = naive(&path, |sample, frames| {
        [31, 32].contains(&sample.pid)
            && of_name.contains(&sample.pid)
            && sample.vcpu == 1
            && sample.mode == Mode::Kernel
            && is_found(frames)
    });
    let found = read(&path, all.clone());
    assert!(expected > 10);
    assert_eq!(found.samples(), expected);
    let names = functions(&found, SortBy::Total);
    assert!(names.iter().all(|function| function.name != "[halted]"));
    for (left_out, selection) in [
        (
            "pids",
            Selection {
                pids: Vec::new(),
                comms: Vec::new(),
                ..all.clone()
            },
        ),
        (
            "vcpus",
            Selection {
                vcpus: Vec::new(),
                ..all.clone()
            },
        ),
        (
            "modes",
            Selection {
                modes: Vec::new(),
                ..all.clone()
            },
        ),
        (
            "grep",
            Selection {
                grep: None,
                ..all.clone()
            },
        ),
    ] {
        assert!(read(&path, selection).samples() > expected, "{left_out}");
    }
    let account = found.account();
    assert!(account.balances());
    assert_eq!(account.samples, naive(&path, |sample, _| sample.vcpu == 1));
}

#[test]
fn threads_add_up_to_processes() {
    let ([one, _], _) = both(&Selection::default());
    let mut sums: BTreeMap<i32, u64> = BTreeMap::new();
    for thread in &one.threads {
        *sums.entry(thread.pid).or_default() += thread.modes.iter().sum::<u64>();
    }
    let processes = one.processes.iter();
    let processes: BTreeMap<i32, u64> = processes
        .map(|(pid, process)| (*pid, process.samples()))
        .collect();
    assert_eq!(sums, processes);
    assert!(one.threads.len() > processes.len());
}
