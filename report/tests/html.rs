//! Tests of the page: its contents, its escaping of names, and the limit of its size.
#![expect(clippy::unwrap_used, reason = "tests fail by it")]

#[path = "shared/data.rs"]
mod data;
mod shared;

use std::path::Path;

use kvmprof_recording::Mode;
use kvmprof_recording::file::Recording;
use kvmprof_report::html::{Timeline, page};
use kvmprof_report::profile::Profile;
use shared::{Written, ordinary};

fn page_of(path: &Path, pids: &[i32]) -> String {
    let profile = Profile::from_file(path, pids).unwrap();
    let recording = Recording::open(path).unwrap();
    let timeline = Timeline::new(&recording, &profile).unwrap();
    page(&profile, &timeline, "A test")
}

fn between<'a>(page: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = page.split_once(begin).unwrap();
    rest.split_once(end).unwrap().0
}

/// The page without style and script.
fn contents(page: &str) -> String {
    let body = between(page, "<body>\n", "<script>");
    body.replace("</div><div class=lane>", "</div>\n<div class=lane>")
}

#[test]
fn the_page_is_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    ordinary(&path, 90);
    let contents = contents(&page_of(&path, &[]));
    data::check("page.html", contents.as_bytes());
}

#[test]
fn hostile_names_stay_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let evil = "ffffffff81000000 T </script><img/src=x/onerror=alert(1)>\"'&\u{1b}[2J\u{202e}\u{1}\n\
                ffffffff81001000 T _end\n";
    let mut written = Written::with_symbols(evil);
    for (pid, name) in [
        (1, b"</td><script>".as_slice()),
        (2, b"<!--"),
        (3, b"\x1b]0;x\x07\x00"),
        (4, b"'\"&amp;\xff\xfe"),
        (-1, b"a;b c 7"),
    ] {
        let kernel = [0xffff_ffff_8100_0010];
        written.samples(3, (pid, name), Mode::Kernel, (&kernel, &[0x10]));
    }
    written.write(&path);
    let page = page_of(&path, &[]);
    // The frames and the script; no other.
    assert_eq!(page.matches("<script").count(), 2, "{page}");
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img") && !page.contains("<!--"));
    assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
    assert!(!page.contains('\u{202e}'));
    assert!(page.contains("&#60;/td&#62;&#60;script&#62;"), "{page}");
    let frames = between(&page, "id=frames>", "</script>");
    let frames: serde_json::Value = serde_json::from_str(frames).unwrap();
    let names = frames["names"].as_array().unwrap();
    let has = |name: &str| {
        names
            .iter()
            .any(|found| found.as_str().unwrap().contains(name))
    };
    assert!(
        has("</td><script>-1") && has("onerror=alert(1)>"),
        "{names:?}"
    );
}

#[test]
fn nothing_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    ordinary(&path, 90);
    let page = page_of(&path, &[]);
    for loader in [
        "http:", "https:", "src=", "href=", "url(", "@import", "fetch(",
    ] {
        assert!(!page.contains(loader), "{loader}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn lost_ticks_and_other_processes_have_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    ordinary(&path, 90);
    let page = page_of(&path, &[9]);
    assert!(page.contains("2 of 216 ticks were lost"), "{page}");
    assert!(page.contains("Only some processes are shown, with 30 ticks"));
    assert!(!page.contains("worker"));
}

#[test]
fn the_size_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let mut written = Written::with_symbols("ffffffff81000000 T f\n");
    for index in 0..40_000_u32 {
        let pid = i32::try_from(index % 3000).unwrap();
        let stack = [
            0x1000 + u64::from(index) * 16,
            0x50_0000 + u64::from(index % 999),
        ];
        written.samples(1, (pid, b"p"), Mode::User, (&[], &stack));
    }
    written.write(&path);
    let page = page_of(&path, &[]);
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    assert!(page.contains("The 1000 largest of 3000 processes are shown"));
}

#[test]
fn a_recording_without_samples_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    Written::with_symbols("").write(&path);
    let page = page_of(&path, &[]);
    assert!(page.contains("There are no samples"), "{page}");
}
