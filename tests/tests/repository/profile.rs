//! The build profile of released programs.

use std::fs;
use std::path::Path;

/// The lines of a table of the workspace's manifest.
fn table(manifest: &str, name: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| *line != name).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.map(str::to_owned).collect()
}

/// An overflow ends them: this applies to all of our crates without an exception.
#[test]
fn released_programs_check_their_arithmetic() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let manifest = fs::read_to_string(path).unwrap();
    let has = |name: &str, line: &str| table(&manifest, name).contains(&line.to_owned());
    assert!(has("[profile.release]", "overflow-checks = true"));
    // Dependencies, "*", are the only exception.
    assert!(has(
        "[profile.release.package.\"*\"]",
        "overflow-checks = false"
    ));
    assert_eq!(manifest.matches("overflow-checks").count(), 2);
}
