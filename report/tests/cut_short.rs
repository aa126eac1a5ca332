//! A function that is the outermost one of complete and of truncated stacks.

use crate::shared::recordings::Written;
use kvmprof_recording::{Mode, StackEnd};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::diff::folded_changes;
use kvmprof_report::graph::{Graph, marked};
use kvmprof_report::profile::{Profile, folded};

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

/// The fill of the only frame called `name` with so many ticks.
fn fill<'a>(svg: &'a str, name: &str, ticks: u64) -> &'a str {
    let title = format!("<title>{name} (");
    assert_eq!(svg.matches(&title).count(), 1, "{name}: {svg}");
    let (_, frame) = svg.split_once(&title).unwrap();
    assert!(frame.starts_with(&format!("{ticks} ticks, ")), "{frame}");
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
        let lines = marked(&profile(whole, cut), &[], &OutputBudget::new(u64::MAX)).unwrap();
        let svg = Graph::default().draw(&lines).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert_eq!(fill(&svg, "0x401000", 5), outermost);
        assert_eq!(fill(&svg, "0x401234", 5), "rgb(140,194,245)");
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
        assert!(
            svg.contains("<title>0x... (5 ticks, 100.00%; 0.00%)"),
            "{svg}"
        );
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
    assert_eq!(
        folded(&profile(3, 2), &OutputBudget::new(u64::MAX)).unwrap(),
        [
            "worker-7;0x401000;0x401234 3",
            "worker-7;[cut short];0x401000;0x401234 2"
        ]
    );
}
