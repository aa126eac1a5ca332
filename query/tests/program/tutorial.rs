//! The questions of the tutorial for operators.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{fleet, printed, root};

const PAGE: &str = include_str!("../../../docs/tutorials/operator.md");

/// As the page has them, but for the folder of the data set.
#[test]
fn the_questions_of_the_tutorial_have_answers() {
    let folder = tempfile::tempdir().unwrap();
    let lines = PAGE.lines().filter_map(|line| line.strip_prefix("    $ "));
    let lines: Vec<&str> = lines
        .filter(|line| line.starts_with("kvmprof query "))
        .collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let built = root().join("target/x86_64-unknown-linux-gnu/release");
    let own = Path::new(env!("CARGO_BIN_EXE_kvmprof-query"));
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::split_paths(&path);
    let path = [
        own.parent().unwrap().to_owned(),
        built.canonicalize().unwrap(),
    ]
    .into_iter()
    .chain(path);
    let path = std::env::join_paths(path).unwrap();
    for line in lines {
        let mut shell = Command::new("sh");
        shell
            .args(["-ec", line])
            .env("PATH", &path)
            .env("KVMPROF_DATA", fleet().folder.path())
            .current_dir(folder.path());
        let said = printed(shell.output().unwrap());
        assert!(!said.is_empty() || line.contains("--output"), "{line}");
    }
    let picture = fs::read_to_string(folder.path().join("db-0.svg")).unwrap();
    assert!(picture.contains("postgres"));
}
