//! Tests of the comparison of two recordings.

use std::path::Path;

use crate::cut_short::fill;
use crate::shared::data;
use crate::shared::read::counted;
use crate::shared::recordings::{Written, ordinary};
use kvmprof_recording::Mode;
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::diff::{Change, changes, folded_changes, print};
use kvmprof_report::graph::Graph;
use kvmprof_report::html::Counts;
use kvmprof_report::profile::{Profile, SortBy};

type Counted = (Profile, Counts);

/// Two recordings with so many samples in copy_page, which runs once in each.
fn stretches(copying: [u64; 2]) -> [Counted; 2] {
    recorded(copying, ordinary)
}

fn recorded(copying: [u64; 2], write: impl Fn(&Path, u64)) -> [Counted; 2] {
    let folder = tempfile::tempdir().unwrap();
    copying.map(|copying| {
        let path = folder.path().join(copying.to_string());
        write(&path, copying);
        counted(&path, &[])
    })
}

fn by_function(before: &Counted, after: &Counted) -> Vec<Change> {
    changes(
        (&before.0, Some(&before.1)),
        (&after.0, Some(&after.1)),
        SortBy::Own,
    )
}

/// The row of copy_page.
fn copying(changes: Vec<Change>) -> Change {
    let mut changes = changes.into_iter();
    changes.find(|change| change.name == "copy_page").unwrap()
}

/// The lines of a differential flame graph, and the picture.
fn drawn(copying: [u64; 2]) -> (Vec<String>, String) {
    let [(before, _), (after, _)] = stretches(copying);
    let lines = folded_changes(&before, &after, &OutputBudget::new(1 << 20)).unwrap();
    let graph = Graph {
        differential: true,
        ..Graph::default()
    };
    let svg = String::from_utf8(graph.draw(&lines).unwrap()).unwrap();
    (lines, svg)
}

#[test]
fn changes_are_listed() {
    let [before, after] = stretches([90, 30]);
    let changes = by_function(&before, &after);
    for (file, colours) in [("diff.txt", false), ("diff.colours.txt", true)] {
        let mut out = Vec::new();
        print(&changes, [&before.0, &after.0], 4, colours, &mut out).unwrap();
        data::check(file, &out);
    }
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    let [recording, _] = stretches([90, 30]);
    let changes = by_function(&recording, &recording);
    assert!(!changes.is_empty());
    for change in changes {
        let is_changed = change.is_significant() || change.change != 0.0;
        assert!(!is_changed, "{change:?}");
    }
}

/// A recording in which a worker and copy_page alternate: 30 times 10 of all ticks, of which this many are copying.
fn turns(path: &Path, copying: u64) {
    let symbols = "ffffffff81002000 t copy_page\nffffffff81004000 T _end\n";
    let mut written = Written::with_symbols(symbols);
    let worker = (7, b"worker".as_slice());
    for _ in 0..30 {
        written.samples(10 - copying, worker, Mode::User, (&[], &[0x40_1234]));
        let copy = [0xffff_ffff_8100_2010];
        written.samples(copying, worker, Mode::Kernel, (&copy, &[]));
    }
    written.write(path);
}

/// The same number of ticks is stronger evidence if they are of many times: one stretch may be longer or shorter in any
/// recording.
#[test]
fn changes_of_frequent_runs_are_significant() {
    let [before, after] = recorded([2, 4], turns);
    let timed = copying(by_function(&before, &after));
    assert_eq!(timed.samples, [60, 120]);
    assert!(timed.is_significant(), "{timed:?}");
    let mut out = Vec::new();
    print(&[timed], [&before.0, &after.0], 4, true, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let row = "\x1b[31m   20.0 %   40.0 %   +20.0    +";
    assert!(out.contains(row), "{out}");
    let untimed = copying(changes((&before.0, None), (&after.0, None), SortBy::Own));
    assert_eq!((untimed.samples, untimed.p), ([60, 120], None));
    let [before, after] = stretches([90, 30]);
    let once = copying(by_function(&before, &after));
    assert!(!once.is_significant(), "{once:?}");
}

#[test]
fn stacks_have_both_counts() {
    let (lines, svg) = drawn([90, 30]);
    // 90 of 210 before; scaled to the 150 after it is 64.
    let copying = "worker;0x...;0x...;entry_SYSCALL_64_[k];ksys_read_[k];copy_page_[k] 64 30";
    assert!(lines.iter().any(|line| line == copying), "{lines:#?}");
    let title = "copy_page (30 ticks, 20.00%; -22.67%)";
    assert!(svg.contains(title), "{svg}");
    assert_eq!(fill(&svg, "copy_page"), "rgb(123,173,240)");
    // The common start of stacks has no change of its own.
    assert_eq!(fill(&svg, "worker"), "rgb(238,240,242)");
    assert!(svg.contains("<g id=\"legend\">"));
}

/// In a picture of small changes the largest one has no saturated colour.
#[test]
fn small_changes_have_pale_colours() {
    let (_, svg) = drawn([300, 303]);
    // 300 of 420 scaled to 423 are 302, of which 303 are 0.24 % more.
    let title = "copy_page (303 ticks, 71.63%; +0.24%)";
    assert!(svg.contains(title), "{svg}");
    assert_eq!(fill(&svg, "copy_page"), "rgb(251,220,214)");
}
