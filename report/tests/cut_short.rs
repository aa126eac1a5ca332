//! A function that is the outermost one of complete and of truncated stacks.

use crate::labels::is_mark;
use crate::shared::read::stacks;
use crate::shared::recordings::Written;
use kvmprof_recording::{Mode, StackEnd};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::diff::folded_changes;
use kvmprof_report::graph::{Graph, marked};
use kvmprof_report::profile::{Levels, Profile};

/// Innermost first.
const STACK: [u64; 2] = [0x40_1234, 0x40_1000];

/// A recording whose stacks are the same one, `whole` times whole and `cut` times cut short.
fn profile(whole: u64, cut: u64) -> Profile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let mut written = Written::with_symbols("ffffffff81000000 T f\n");
    let worker = (7, b"worker".as_slice());
    written.samples(whole, worker, Mode::User, (&[], &STACK));
    written.user_parts_end(StackEnd::Broken);
    written.samples(cut, worker, Mode::User, (&[], &STACK));
    written.write(&path);
    Profile::from_file(&path, &[]).unwrap()
}

/// The fill of the only frame called `name`.
pub fn fill<'a>(svg: &'a str, name: &str) -> &'a str {
    let title = format!("<title>{name} (");
    assert_eq!(svg.matches(&title).count(), 1, "{name}: {svg}");
    let (_, frame) = svg.split_once(&title).unwrap();
    let (_, fill) = frame.split_once("fill=\"").unwrap();
    fill.split_once('"').unwrap().0
}

#[test]
fn a_flame_graph_has_one_marker_frame() {
    for (whole, cut, outermost) in [
        (3, 2, "url(#cut-user)"),
        (2, 3, "url(#cut-user)"),
        (5, 0, "rgb(140,194,245)"),
    ] {
        let lines = marked(
            &profile(whole, cut),
            &Levels::default(),
            &OutputBudget::new(u64::MAX),
        )
        .unwrap();
        let svg = Graph::default().draw(&lines).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for (name, colour) in [("0x401000", outermost), ("0x401234", "rgb(140,194,245)")] {
            assert_eq!(fill(&svg, name), colour);
            assert!(svg.contains(&format!("<title>{name} (5 ticks, ")), "{svg}");
        }
    }
}

/// Of a process in an interrupt, and of a halted vCPU.
#[test]
fn modes_have_colours_and_truncated_stacks_torn_edges() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let mut written = Written::with_symbols("1000 T entry\n2000 t copy\t[fs]\n");
    written.samples(1, (8, b"other"), Mode::Interrupt, (&[0x1001], &[]));
    written.user_parts_end(StackEnd::Broken);
    written.samples(2, (7, b"worker"), Mode::Kernel, (&[0x2004], &[0x50]));
    written.gap(2, 0, 0);
    written.write(&path);
    let profile = Profile::from_file(&path, &[]).unwrap();
    let lines = marked(&profile, &Levels::default(), &OutputBudget::new(u64::MAX)).unwrap();
    for icicle in [false, true] {
        let graph = Graph {
            icicle,
            ..Graph::default()
        };
        let svg = String::from_utf8(graph.draw(&lines).unwrap()).unwrap();
        assert!(
            !svg.contains(is_mark) && !svg.contains("[cut short]"),
            "{svg}"
        );
        for (name, colour) in [
            ("entry", "rgb(227,161,218)"),
            ("0x50", "url(#cut-user)"),
            ("copy", "rgb(244,164,96)"),
            ("[halted]", "rgb(207,214,221)"),
        ] {
            assert_eq!(fill(&svg, name), colour, "{name}");
        }
    }
}

/// It is compared with itself, however its stacks ended.
#[test]
fn a_differential_flame_graph_has_one_marker_frame() {
    let graph = Graph {
        differential: true,
        ..Graph::default()
    };
    for ((before, after), outermost) in [
        (((3, 2), (5, 0)), "url(#cut-same)"),
        (((5, 0), (1, 4)), "url(#cut-same)"),
        (((5, 0), (5, 0)), "rgb(238,240,242)"),
    ] {
        let [before, after] = [before, after].map(|(whole, cut)| profile(whole, cut));
        let lines = folded_changes(&before, &after, &OutputBudget::new(u64::MAX)).unwrap();
        let svg = String::from_utf8(graph.draw(&lines).unwrap()).unwrap();
        let title = "<title>0x... (5 ticks, 100.00%; 0.00%)";
        assert!(svg.contains(title), "{svg}");
        let (_, outer) = svg.split_once("<title>worker (").unwrap();
        assert!(!outer.contains("[cut short]"), "{svg}");
        let fills = svg.matches(&format!("fill=\"{outermost}\"")).count();
        assert!(fills > 0, "{svg}");
        let torn = svg.matches("fill=\"url(#cut-").count();
        // The legend has one.
        let expected = if outermost.starts_with("url") { 2 } else { 1 };
        assert_eq!(torn, expected, "{svg}");
    }
}

/// Other programs parse them: only the frame can mark it.
#[test]
fn folded_stacks_have_a_marker_frame() {
    let whole = "worker-7;0x401000;0x401234 3";
    let cut = "worker-7;[cut short];0x401000;0x401234 2";
    assert_eq!(stacks(&profile(3, 2)), [whole, cut]);
}
