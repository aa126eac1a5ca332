//! Tests of the comparison of two recordings.

use crate::shared::data;
use crate::shared::recordings::ordinary;
use kvmprof_report::diff::{changes, folded_changes, print};
use kvmprof_report::graph::Graph;
use kvmprof_report::profile::{Profile, SortBy};
use kvmprof_report::room::Room;

fn profiles() -> [Profile; 2] {
    let folder = tempfile::tempdir().unwrap();
    [90, 30].map(|copying| {
        let path = folder.path().join(copying.to_string());
        ordinary(&path, copying);
        Profile::from_file(&path, &[]).unwrap()
    })
}

#[test]
fn changes_are_listed() {
    let [before, after] = profiles();
    let mut out = Vec::new();
    let changes = changes(&before, &after, SortBy::Own);
    print(&changes, [&before, &after], 4, false, &mut out).unwrap();
    data::check("diff.txt", &out);
    let mut out = Vec::new();
    print(&changes, [&before, &after], 4, true, &mut out).unwrap();
    data::check("diff.colours.txt", &out);
}

#[test]
fn nothing_changed_from_a_recording_to_itself() {
    let [before, _] = profiles();
    let changes = changes(&before, &before, SortBy::Total);
    assert!(!changes.is_empty());
    for change in changes {
        assert!(
            !change.is_significant() && change.change == 0.0,
            "{change:?}"
        );
    }
}

#[test]
fn stacks_have_both_counts() {
    let [before, after] = profiles();
    let lines = folded_changes(&before, &after, &Room::new(1 << 20)).unwrap();
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
    // What stacks begin with has no change of its own.
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

/// In a picture of small changes the largest one has no deep colour.
#[test]
fn small_changes_look_small() {
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
    let lines = folded_changes(&before, &after, &Room::new(1 << 20)).unwrap();
    let svg = String::from_utf8(graph.draw(&lines).unwrap()).unwrap();
    // 300 of 420 scaled to 423 are 302, of which 303 are 0.24 % more.
    assert!(
        svg.contains("copy_page (303 ticks, 71.63%; +0.24%)"),
        "{svg}"
    );
    assert_eq!(fill(&svg, "copy_page"), "rgb(251,220,214)");
}
