//! Tests of the comparison of two recordings.

use std::path::Path;

use crate::shared::data;
use crate::shared::recordings::{Written, ordinary};
use kvmprof_recording::Mode;
use kvmprof_recording::file::Recording;
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::diff::{changes, folded_changes, print};
use kvmprof_report::graph::Graph;
use kvmprof_report::html::{Counts, counted};
use kvmprof_report::profile::{Profile, SortBy};

fn profiles() -> [Profile; 2] {
    stretches().map(|(profile, _)| profile)
}

/// In each of them copy_page runs once.
fn stretches() -> [(Profile, Counts); 2] {
    let folder = tempfile::tempdir().unwrap();
    [90, 30].map(|copying| {
        let path = folder.path().join(copying.to_string());
        ordinary(&path, copying);
        counted(&Recording::open(&path).unwrap(), &[]).unwrap()
    })
}

#[test]
fn changes_are_listed() {
    let [(before, earlier), (after, later)] = stretches();
    let mut out = Vec::new();
    let changes = changes(
        (&before, Some(&earlier)),
        (&after, Some(&later)),
        SortBy::Own,
    );
    print(&changes, [&before, &after], 4, false, &mut out).unwrap();
    data::check("diff.txt", &out);
    let mut out = Vec::new();
    print(&changes, [&before, &after], 4, true, &mut out).unwrap();
    data::check("diff.colours.txt", &out);
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    let [(before, counts), _] = stretches();
    let side = (&before, Some(&counts));
    let changes = changes(side, side, SortBy::Total);
    assert!(!changes.is_empty());
    for change in changes {
        assert!(
            !change.is_significant() && change.change == 0.0,
            "{change:?}"
        );
    }
}

/// A recording in which a worker and copy_page alternate: 30 times 10 of all ticks, of which this many are copying.
fn turns(path: &Path, copying: u64) -> (Profile, Counts) {
    let symbols = "ffffffff81002000 t copy_page\nffffffff81004000 T _end\n";
    let mut written = Written::with_symbols(symbols);
    let worker = (7, b"worker".as_slice());
    for _ in 0..30 {
        written.samples(10 - copying, worker, Mode::User, (&[], &[0x40_1234]));
        let copy = [0xffff_ffff_8100_2010];
        written.samples(copying, worker, Mode::Kernel, (&copy, &[]));
    }
    written.write(path);
    counted(&Recording::open(path).unwrap(), &[]).unwrap()
}

/// The same number of ticks is stronger evidence if they are of many times: one stretch may be longer or shorter in any
/// recording.
#[test]
fn changes_of_frequent_runs_are_significant() {
    let folder = tempfile::tempdir().unwrap();
    let [before, after] = [2, 4].map(|copying| {
        let path = folder.path().join(copying.to_string());
        turns(&path, copying)
    });
    let times = [Some(&before.1), Some(&after.1)];
    let found = |[earlier, later]: [Option<&Counts>; 2]| {
        let changes = changes((&before.0, earlier), (&after.0, later), SortBy::Own);
        let copy = changes
            .into_iter()
            .find(|change| change.name == "copy_page");
        copy.unwrap()
    };
    let timed = found(times);
    assert_eq!(timed.samples, [60, 120]);
    assert!(timed.is_significant(), "{timed:?}");
    let mut out = Vec::new();
    print(&[timed], [&before.0, &after.0], 4, true, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.contains("\x1b[31m   20.0 %   40.0 %   +20.0    +"),
        "{out}"
    );
    let untimed = found([None, None]);
    assert_eq!((untimed.samples, untimed.p), ([60, 120], None));
    let [(before, earlier), (after, later)] = stretches();
    let side = |profile, counts| (profile, Some(counts));
    let changes = changes(side(&before, &earlier), side(&after, &later), SortBy::Own);
    let copy = changes.iter().find(|change| change.name == "copy_page");
    assert!(!copy.unwrap().is_significant(), "{copy:?}");
}

#[test]
fn stacks_have_both_counts() {
    let [before, after] = profiles();
    let lines = folded_changes(&before, &after, &OutputBudget::new(1 << 20)).unwrap();
    // 90 of 210 before; scaled to the 150 after it is 64.
    let copying = "worker;0x...;0x...;entry_SYSCALL_64_[k];ksys_read_[k];copy_page_[k] 64 30";
    assert!(lines.iter().any(|line| line == copying), "{lines:#?}");
    let graph = Graph {
        differential: true,
        ..Graph::default()
    };
    let svg = String::from_utf8(graph.draw(&lines).unwrap()).unwrap();
    assert!(
        svg.contains("copy_page (30 ticks, 20.00%; -22.67%)"),
        "{svg}"
    );
    assert_eq!(fill(&svg, "copy_page"), "rgb(123,173,240)");
    // The common start of stacks has no change of its own.
    assert_eq!(fill(&svg, "worker"), "rgb(238,240,242)");
    assert!(svg.contains("<g id=\"legend\">"));
}

/// The fill of the only frame called `name`.
fn fill<'a>(svg: &'a str, name: &str) -> &'a str {
    let title = format!("<title>{name} (");
    assert_eq!(svg.matches(&title).count(), 1, "{name}: {svg}");
    let (_, frame) = svg.split_once(&title).unwrap();
    let (_, fill) = frame.split_once("fill=\"").unwrap();
    fill.split_once('"').unwrap().0
}

/// In a picture of small changes the largest one has no saturated colour.
#[test]
fn small_changes_have_pale_colours() {
    let folder = tempfile::tempdir().unwrap();
    let [before, after] = [300, 303].map(|copying| {
        let path = folder.path().join(copying.to_string());
        ordinary(&path, copying);
        Profile::from_file(&path, &[]).unwrap()
    });
    let graph = Graph {
        differential: true,
        ..Graph::default()
    };
    let lines = folded_changes(&before, &after, &OutputBudget::new(1 << 20)).unwrap();
    let svg = String::from_utf8(graph.draw(&lines).unwrap()).unwrap();
    // 300 of 420 scaled to 423 are 302, of which 303 are 0.24 % more.
    assert!(
        svg.contains("copy_page (303 ticks, 71.63%; +0.24%)"),
        "{svg}"
    );
    assert_eq!(fill(&svg, "copy_page"), "rgb(251,220,214)");
}
