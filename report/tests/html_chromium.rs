//! The page and the flame graph in a browser: what its script draws is there, and nothing complains.
//!
//! Without a browser these tests tell so and check nothing; `tests/run` tells so too.
#![expect(clippy::unwrap_used, reason = "tests fail by it")]

mod shared;

use std::path::Path;
use std::process::{Command, Stdio};

use kvmprof_devices::profiling::Mode;
use kvmprof_report::file::Recording;
use kvmprof_report::graph::Graph;
use kvmprof_report::html::{Timeline, page};
use kvmprof_report::profile::{Profile, folded};
use shared::{Written, ordinary};

const BROWSERS: [&str; 4] = [
    "chromium",
    "google-chrome",
    "google-chrome-stable",
    "chromium-browser",
];

fn browser() -> Option<&'static str> {
    let starts = |name: &&&str| {
        let mut command = Command::new(name);
        command.arg("--version");
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let found = BROWSERS.iter().find(starts).copied();
    if found.is_none() {
        println!("NOT RUN: none of {BROWSERS:?} is installed");
    }
    found
}

/// What the browser makes of `path` once its scripts have run, and its screenshot at `picture`.
///
/// # Panics
/// When a script fails, or wants to load something.
fn open(browser: &str, path: &Path, picture: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let shown = |option: &str| {
        let output = Command::new(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args([
                "--enable-logging=stderr",
                "--v=0",
                "--virtual-time-budget=3000",
            ])
            .args(["--window-size=1300,1700", "--hide-scrollbars", option])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg(format!("file://{}", path.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("CONSOLE"), "{said}");
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap()
    };
    shown(&format!("--screenshot={}", picture.display()));
    assert!(std::fs::read(picture).unwrap().starts_with(b"\x89PNG"));
    shown("--dump-dom")
}

fn picture(name: &str) -> std::path::PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    println!("A screenshot is at {}", path.display());
    path
}

fn write_page(recording: &Path, to: &Path) {
    let profile = Profile::of_file(recording, &[]).unwrap();
    let timeline = Recording::open(recording).unwrap();
    let timeline = Timeline::of(&timeline, &profile, &[]).unwrap();
    std::fs::write(to, page(&profile, &timeline, "A test")).unwrap();
}

#[test]
fn the_page_is_drawn() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (recording, html) = (
        folder.path().join("recording"),
        folder.path().join("page.html"),
    );
    ordinary(&recording, 90);
    write_page(&recording, &html);
    let document = open(browser, &html, &picture("page.png"));
    // Three callees of each process.
    assert_eq!(
        document.matches("<div class=\"f k\"").count(),
        6,
        "{document}"
    );
    assert!(document.contains("title=\"copy_page: 90 ticks, 42.86 % of all\""));
    assert!(document.contains("<div id=\"tools\">"));
    assert!(document.contains("class=\"sorts\""));
}

/// Sorts the functions by name, looks closer at a frame, and searches.
const USE: &str = "<script>
const functions = document.querySelectorAll('table.sortable')[1];
functions.tHead.rows[0].cells[5].click();
[...document.querySelectorAll('.f')].find((box) => box.title.startsWith('ksys_read: 90 ')).click();
const search = document.getElementById('search');
search.value = 'COPY';
search.dispatchEvent(new Event('input'));
document.title = functions.tBodies[0].rows[6].cells[5].textContent;
</script>";

#[test]
fn the_page_can_be_used() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (recording, html) = (
        folder.path().join("recording"),
        folder.path().join("page.html"),
    );
    ordinary(&recording, 90);
    write_page(&recording, &html);
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::write(&html, page.replace("</body>", &format!("{USE}</body>"))).unwrap();
    let document = open(browser, &html, &picture("used.png"));
    assert!(document.contains("<title>ksys_read</title>"), "{document}");
    assert!(document.contains("found in 100.00 %"));
    assert_eq!(document.matches(" hit\"").count(), 1);
    // All that ksys_read was called by, and no other process.
    assert_eq!(document.matches(" above\" title=").count(), 5);
    assert!(!document.contains("title=\"logger-9"));
}

#[test]
fn hostile_names_do_nothing() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (recording, html) = (
        folder.path().join("recording"),
        folder.path().join("page.html"),
    );
    let mut written = Written::with_symbols(
        "ffffffff81000000 T </script><img/src=x/onerror=console.error(1)>\nffffffff81001000 T _end\n",
    );
    let kernel = [0xffff_ffff_8100_0010];
    written.samples(3, (1, b"<script>x()"), Mode::Kernel, (&kernel, &[]));
    written.write(&recording);
    write_page(&recording, &html);
    let document = open(browser, &html, &picture("hostile.png"));
    assert!(!document.contains("<img"), "{document}");
    assert!(document.contains(">&lt;/script&gt;&lt;img/src=x/onerror=console.error(1)&gt;</div>"));
}

#[test]
fn the_flame_graph_is_drawn() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (recording, svg) = (
        folder.path().join("recording"),
        folder.path().join("graph.svg"),
    );
    ordinary(&recording, 90);
    let profile = Profile::of_file(&recording, &[]).unwrap();
    for icicle in [false, true] {
        let graph = Graph {
            title: "A <test>".to_owned(),
            icicle,
            ..Graph::default()
        };
        std::fs::write(&svg, graph.draw(&folded(&profile)).unwrap()).unwrap();
        let document = open(browser, &svg, &picture(&format!("graph-{icicle}.png")));
        // The script fits texts into their frames, and puts a space behind.
        assert!(document.contains(">copy_page </text>"), "{document}");
        assert!(document.contains("A &lt;test&gt;"));
    }
}
