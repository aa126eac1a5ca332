//! Several recordings that are counted together, and the filters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::shared::pages::count;
use crate::shared::read::{printed, profile, stacks};
use crate::shared::recordings::Written;
use crate::shared::walk;
use kvmprof_recording::file::{Account, Recording};
use kvmprof_recording::{Mode, Sample, comm_of};
use kvmprof_report::profile::{Grouping, Layout, Profile, SortBy, document};
use serde_json::Value;

/// Two recordings of the same processes, and both together.
fn both() -> ([Profile; 2], Profile) {
    let folder = tempfile::tempdir().unwrap();
    let all = || {
        [5, 6].map(|seed| {
            let path = folder.path().join(seed.to_string());
            walk::write(&path, seed, 2000 * seed);
            profile(&path, &[])
        })
    };
    (all(), Profile::merge(all().into()).unwrap())
}

/// The sums of `name` in the rows of all documents, by the columns that identify rows.
fn added(all: &[Value], table: &str, keys: &[&str], name: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in all.iter().flat_map(|one| one[table].as_array().unwrap()) {
        let key = keys.iter().map(|key| row[key].to_string() + " ");
        *sums.entry(key.collect()).or_default() += count(&row[name]);
    }
    sums
}

#[test]
fn sums_of_recordings_add_up() {
    let ([one, other], merged) = both();
    let parts = [&one, &other].map(|one| document(one, SortBy::Own, usize::MAX));
    let whole = document(&merged, SortBy::Own, usize::MAX);
    for name in ["ticks", "samples", "idle", "stolen", "lost", "ungathered"] {
        let sum: u64 = parts.iter().map(|part| count(&part["account"][name])).sum();
        assert_eq!(whole["account"][name], sum, "{name}");
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
        let found = added(std::slice::from_ref(&whole), table, keys, name);
        assert_eq!(found, added(&parts, table, keys, name), "{table}");
    }
    let lines = stacks(&merged);
    let counts = lines.iter().map(|line| line.rsplit_once(' ').unwrap().1);
    let ticks: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
    assert_eq!(ticks, merged.samples());
}

#[test]
fn processes_of_different_guests_stay_apart() {
    let ([one, other], merged) = both();
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
    let lines = stacks(&merged);
    for process in ["walker 32-32 (1);", "walker 32-32 (2);"] {
        assert!(
            lines.iter().any(|line| line.starts_with(process)),
            "{lines:#?}"
        );
    }
    let layout = Layout {
        tables: [Grouping::Process, Grouping::Thread].map(Into::into).into(),
        top: 100,
        ..Layout::default()
    };
    let text = printed(&merged, &layout);
    assert!(text.starts_with("(1) 5"), "{text}");
    for line in ["\n(2) 6", "\nAll 2 together: "] {
        assert!(text.contains(line), "{text}");
    }
    for number in 1..3 {
        let process = format!("     ({number})       32  walker 32 ");
        assert!(text.contains(&process), "{text}");
        let thread = format!("     ({number})       32      232  walker 232 ");
        assert!(text.contains(&thread), "{text}");
    }
}

#[test]
fn other_ticks_are_refused() {
    let ([one, mut other], _) = both();
    other.contents.info.hz = 1000;
    let refused = Profile::merge(vec![one, other]).unwrap_err().to_string();
    for part in ["250 Hz", "1000 Hz", "5 ", "6 ", "--hz"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

/// A shell that executes another program, and another shell.
#[test]
fn a_process_that_executes_another_program_counts_under_both_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let mut written = Written::with_symbols("");
    for (pid, name, count) in [(7, "sh", 3_u64), (8, "sh", 2), (7, "make", 5)] {
        let process = (pid, name.as_bytes());
        written.samples(count, process, Mode::Kernel, (&[0x1000], &[]));
    }
    written.write(&path);
    for (option, expected) in [("--comm=sh", 10), ("--comm=make", 8), ("--comm=mak", 0)] {
        assert_eq!(profile(&path, &[option]).samples(), expected, "{option}");
    }
}

/// The samples that a selection should leave, one by one.
fn naive(path: &Path, mut is_wanted: impl FnMut(&Sample, &[u64]) -> bool) -> u64 {
    let mut found = 0;
    let read = Recording::open(path).unwrap().read(|ticks, frames| {
        let is_found = (ticks.sample).is_some_and(|sample| is_wanted(&sample, frames));
        found += u64::from(is_found);
    });
    read.unwrap();
    found
}

#[test]
fn filters_combine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    walk::write(&path, 9, 4000);
    let mut of_name = BTreeSet::new();
    naive(&path, |sample, _| {
        sample.comm == comm_of("walker 132") && of_name.insert(sample.pid)
    });
    assert!(of_name.contains(&32));
    // walk::KERNEL's third and sixth function.
    let is_found = |frames: &[u64]| {
        let mut functions = frames
            .iter()
            .map(|frame| frame.wrapping_sub(0xffff_ffff_8100_0000) / 0x100);
        functions.any(|function| [2, 5].contains(&function))
    };
    let expected = naive(&path, |sample, frames| {
        [31, 32].contains(&sample.pid)
            && of_name.contains(&sample.pid)
            && sample.vcpu == 1
            && sample.mode == Mode::Kernel
            && is_found(frames)
    });
    let all = [
        "--pid=31,32",
        "--comm=walker 132",
        "--vcpu=1",
        "--mode=kernel",
        "--grep=^(copy|walk)_",
    ];
    let found = profile(&path, &all);
    assert!(expected > 10);
    assert_eq!(found.samples(), expected);
    // Those of the process's two options imply each other.
    for (left_out, index) in [
        ("process", 0..2),
        ("vCPU", 2..3),
        ("mode", 3..4),
        ("grep", 4..5),
    ] {
        let others = [&all[..index.start], &all[index.end..]].concat();
        assert!(profile(&path, &others).samples() > expected, "{left_out}");
    }
    let account = found.account();
    assert!(account.balances());
    assert_eq!(account.samples, naive(&path, |sample, _| sample.vcpu == 1));
}

#[test]
fn threads_add_up_to_processes() {
    let ([one, _], _) = both();
    let mut sums: BTreeMap<i32, u64> = BTreeMap::new();
    for thread in &one.threads {
        *sums.entry(thread.pid).or_default() += thread.modes.iter().sum::<u64>();
    }
    let processes = one
        .processes
        .iter()
        .map(|(pid, process)| (*pid, process.samples()));
    let processes: BTreeMap<i32, u64> = processes.collect();
    assert_eq!(sums, processes);
    assert!(one.threads.len() > processes.len());
}
