//! What the page looks like in a browser, beside the pictures in `tests/data/looks`.

use std::path::Path;

use crate::shared::pages::USUAL;
use crate::shared::used::{node, npm_readers};
use crate::shared::walk;
use kvmprof_recording::file::Recording;
use kvmprof_report::html::page_of;
use serde_json::Value;

/// How much a pane may differ, as a part of how much it would if it weren't there. Other fonts are a little wider.
const ALLOWED: f64 = 0.5;

/// A pane that is missing differs by 1.
#[test]
fn the_page_looks_as_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    walk::write(&recording, 20, USUAL);
    let page = page_of(&Recording::open(&recording).unwrap(), &[], "A test").unwrap();
    let file = folder.path().join("page.html");
    std::fs::write(&file, page).unwrap();
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/looks");
    // What is found is kept.
    let found = Path::new(env!("CARGO_TARGET_TMPDIR")).join("looks");
    let _ = std::fs::remove_dir_all(&found);
    let output = node()
        .arg(npm_readers().join("looks.mjs"))
        .args([&expected, &file, &found])
        .output()
        .unwrap_or_else(|error| panic!("node: {error}: tests/run installs it"));
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaints}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["complaints"], Value::Array(Vec::new()));
    let looks = said["looks"].as_array().unwrap();
    assert_eq!(looks.len(), 8);
    for look in looks {
        let panes = look["panes"].as_object().unwrap();
        // Where there is little room the details are there for what is selected only.
        let is_narrow = look["name"].as_str().unwrap().starts_with("360");
        assert_eq!(panes.len(), if is_narrow { 4 } else { 5 }, "{look}");
        assert!(
            panes.values().all(|part| part.as_f64().unwrap() < ALLOWED),
            "it doesn't look as it did, but as in {}. If that is meant: KVMPROF_BLESS=1. {look}",
            found.display()
        );
    }
}
