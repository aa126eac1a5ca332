//! Tests of the page: its contents, its escaping of names, and the limit of its size.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::shared::data;
use crate::shared::read::printed;
use crate::shared::recordings::{Written, ordinary};
use kvmprof_recording::Mode;
use kvmprof_recording::file::{PauseInfo, Recording, ResetInfo};
use kvmprof_report::html::page_of;
use kvmprof_report::profile::{Layout, Profile};
use tempfile::TempDir;

fn page(path: &Path, pids: &[i32]) -> String {
    page_of(&Recording::open(path).unwrap(), pids, "A test").unwrap()
}

fn recording() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    ordinary(&path, 90);
    (folder, path)
}

/// The tables of `kvmprof report`.
fn report(path: &Path) -> String {
    printed(&Profile::from_file(path, &[]).unwrap(), &Layout::default())
}

/// The data of its script.
fn data_of(page: &str) -> serde_json::Value {
    serde_json::from_str(between(page, "id=data>", "</script>")).unwrap()
}

fn between<'a>(page: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = page.split_once(begin).unwrap();
    rest.split_once(end).unwrap().0
}

/// The page without style and script.
fn contents(page: &str) -> String {
    between(page, "<body>\n", "<script>").replace(",\"", ",\n\"")
}

#[test]
fn the_page_equals_its_expected_output() {
    let (_folder, path) = recording();
    let contents = contents(&page(&path, &[]));
    data::check("page.html", contents.as_bytes());
}

#[test]
fn nothing_is_loaded() {
    let (_folder, path) = recording();
    // The patterns of lost and stolen ticks are in the page itself.
    let mut page = page(&path, &[]);
    for own in ["url(#hatch-", "url(#charthatch-", "href=#hatch-"] {
        page = page.replace(own, "");
    }
    for loader in [
        "http:", "https:", "src=", "href=", "url(", "@import", "fetch(",
    ] {
        assert!(!page.contains(loader), "{loader}");
    }
    assert!(page.contains("default-src &#39;none&#39;"));
}

#[test]
fn lost_ticks_and_other_processes_have_warnings() {
    let (_folder, path) = recording();
    let page = page(&path, &[9]);
    let lost = "2.8 % of the ticks have no sample (1.9 % stolen by the host, 0.9 % lost): ";
    assert!(page.contains(lost), "{page}");
    assert!(page.contains("Only --pid 9 is shown, 30 ticks"));
    assert!(!page.contains("worker"));
}

#[test]
fn the_size_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let mut written = Written::with_symbols("ffffffff81000000 T f\n");
    for index in 0..40_000_u32 {
        let pid = i32::try_from(index % 3000).unwrap();
        let stack = [0x1000 + index * 16, 0x50_0000 + index % 999].map(u64::from);
        written.samples(1, (pid, b"p"), Mode::User, (&[], &stack));
    }
    written.write(&path);
    let page = page(&path, &[]);
    assert!(page.len() < 4_000_000, "{} bytes", page.len());
}

#[test]
fn shares_of_few_remaining_ticks_have_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let mut written = Written::with_symbols("");
    written.samples(60, (7, b"worker"), Mode::User, (&[], &[0x40_1234]));
    written.gap(0, 30, 10);
    written.write(&path);
    let warning = "40.0 % of the ticks have no sample (30.0 % stolen by the host, 10.0 % lost)";
    let page = page(&path, &[]);
    assert!(page.contains(warning), "{page}");
    let out = report(&path);
    assert!(out.contains(warning), "{out}");
}

/// More processes, threads, stacks and times than the limits: the rest is summed, and none is lost.
#[test]
fn nodes_beyond_the_maximum_are_summed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let mut written = Written::with_symbols("ffffffff81000000 T f\n");
    for pid in 1..=30_000 {
        written.samples(1, (pid, b"p"), Mode::User, (&[], &[0x1000]));
    }
    written.write(&path);
    let data = data_of(&page(&path, &[]));
    let pids = data["threads"]["pid"].as_array().unwrap();
    assert_eq!(pids.len(), 20_001);
    assert_eq!(pids.iter().filter(|pid| pid.is_null()).count(), 1);
}

#[test]
fn a_page_says_that_the_guest_restarted_and_was_paused() {
    let (_folder, path) = recording();
    assert!(!page(&path, &[]).contains("<p class=warning>The guest"));
    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    // Recordings begin 5 s after the clock does.
    for time in [5_250_000_000, 5_500_000_000] {
        let reset = ResetInfo { time }.to_block().unwrap();
        file.write_all(&reset).unwrap();
    }
    for (time, paused) in [(5_125_000_000, true), (5_200_000_000, false)] {
        let pause = PauseInfo { time, paused }.to_block().unwrap();
        file.write_all(&pause).unwrap();
    }
    let page = page(&path, &[]);
    let restarts =
        "<p class=warning>The guest restarted 2 times, first 0.250 s from its begin.</p>";
    assert!(page.contains(restarts), "{page}");
    let pauses =
        "The guest was paused once 0.125 s from its begin, for 0.075 s: it has no ticks then";
    let warning = format!("<p class=warning>{pauses}.</p>");
    assert!(page.contains(&warning), "{page}");
    assert!(report(&path).contains(pauses));
}

/// An empty table would suggest that nothing ran.
#[test]
fn a_report_without_samples_names_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    for (stolen, lost, why) in [
        (0, 0, "no tick came before the recording's end."),
        (30, 10, "of 40 ticks, 30 stolen by the host, 10 lost."),
    ] {
        let mut written = Written::with_symbols("");
        written.gap(0, stolen, lost);
        written.write(&path);
        let (out, why) = (report(&path), format!("There are no samples: {why}"));
        assert!(out.contains(&why) && !out.contains("MODE"), "{out}");
        let page = page(&path, &[]).replace("&#39;", "'");
        assert!(page.contains(&why), "{page}");
    }
}
