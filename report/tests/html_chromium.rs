//! Opens the flame graph in a browser: its script must draw, without errors. page_use.rs uses the page.

use crate::shared::browser::Browser;
use crate::shared::recordings::ordinary;
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::graph::Graph;
use kvmprof_report::profile::{Profile, folded};

#[test]
fn the_flame_graph_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    ordinary(&recording, 90);
    let profile = Profile::from_file(&recording, &[]).unwrap();
    for (icicle, name) in [(false, "flame"), (true, "icicle")] {
        let graph = Graph {
            title: "A <test>".to_owned(),
            icicle,
            ..Graph::default()
        };
        let svg = graph
            .draw(&folded(&profile, &OutputBudget::new(u64::MAX)).unwrap())
            .unwrap();
        let path = folder.path().join(name).with_extension("svg");
        std::fs::write(&path, svg).unwrap();
        let url = format!("file://{}", path.display());
        let document = Browser::new(folder.path()).page(&url, name);
        // The script fits texts into their frames, and appends a space.
        assert!(document.contains(">copy_page </text>"), "{document}");
        assert!(document.contains("A &lt;test&gt;"));
    }
}
