//! Opens the page and the flame graph in a browser: their scripts must draw, without errors. page_use.rs uses the page.

use std::path::{Path, PathBuf};

use crate::shared::browser::Browser;
use crate::shared::recordings::{Written, ordinary};
use kvmprof_recording::Mode;
use kvmprof_recording::file::Recording;
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::graph::Graph;
use kvmprof_report::html::page_of;
use kvmprof_report::profile::{Profile, folded};
use tempfile::TempDir;

/// A recording in a folder, which is also for files made from it.
struct Scene {
    folder: TempDir,
    recording: PathBuf,
}

impl Scene {
    fn new(write: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recording = folder.path().join("recording");
        write(&recording);
        Self { folder, recording }
    }

    fn ordinary() -> Self {
        Self::new(|path| ordinary(path, 90))
    }

    fn profile(&self) -> Profile {
        Profile::from_file(&self.recording, &[]).unwrap()
    }

    /// The page.
    fn page(&self) -> String {
        let recording = Recording::open(&self.recording).unwrap();
        page_of(&recording, &[], "A test").unwrap()
    }

    /// `document` in a file with this `extension`, as the browser sees it after its scripts have run. A screenshot is
    /// kept as `name`.
    fn open(&self, document: &[u8], extension: &str, name: &str) -> String {
        let path = self.folder.path().join(name).with_extension(extension);
        std::fs::write(&path, document).unwrap();
        let url = format!("file://{}", path.display());
        Browser::new(self.folder.path()).page(&url, name)
    }
}

#[test]
fn hostile_names_do_nothing() {
    let mut written = Written::with_symbols(
        "ffffffff81000000 T </script><img/src=x/onerror=console.error(1)>\nffffffff81001000 T _end\n",
    );
    let kernel = [0xffff_ffff_8100_0010];
    written.samples(3, (1, b"<script>x()"), Mode::Kernel, (&kernel, &[]));
    let scene = Scene::new(|path| written.write(path));
    let document = scene.open(scene.page().as_bytes(), "html", "hostile");
    assert!(!document.contains("<img"), "{document}");
    assert!(document.contains(">&lt;/script&gt;&lt;img/src=x/onerror=console.error(1)&gt;</div>"));
}

#[test]
fn the_flame_graph_is_drawn() {
    let scene = Scene::ordinary();
    let profile = scene.profile();
    for icicle in [false, true] {
        let graph = Graph {
            title: "A <test>".to_owned(),
            icicle,
            ..Graph::default()
        };
        let svg = graph
            .draw(&folded(&profile, &OutputBudget::new(u64::MAX)).unwrap())
            .unwrap();
        let document = scene.open(&svg, "svg", if icicle { "icicle" } else { "flame" });
        // The script fits texts into their frames, and appends a space.
        assert!(document.contains(">copy_page </text>"), "{document}");
        assert!(document.contains("A &lt;test&gt;"));
    }
}
