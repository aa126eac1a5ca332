//! The crates that others can build on: what a registry asks of them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::dependencies::metadata;

/// `docs/architecture.md` names each.
const PUBLISHED: [&str; 4] = [
    "kvmprof-abi",
    "kvmprof-introspection",
    "kvmprof-paging",
    "kvmprof-recording",
];

/// The packages of the workspace that may be published.
fn published(metadata: &Value) -> Vec<&Value> {
    let packages = metadata["packages"].as_array().unwrap().iter();
    let own = packages.filter(|package| package["source"].is_null());
    own.filter(|package| package["publish"].is_null()).collect()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

/// A registry refuses a package that depends on one that it doesn't have.
#[test]
fn these_are_published_and_whatever_they_depend_on() {
    let metadata = metadata();
    let published = published(&metadata);
    let mut names: Vec<&str> = published.iter().map(|package| name(package)).collect();
    names.sort_unstable();
    assert_eq!(names, PUBLISHED);
    for package in published {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        for dependency in dependencies.filter(|it| it["kind"] != "dev") {
            let whole = format!("{} {dependency}", name(package));
            assert_ne!(dependency["req"], "*", "{whole}");
            if !dependency["path"].is_null() {
                assert!(PUBLISHED.contains(&name(dependency)), "{whole}");
            }
        }
    }
}

/// The limits are those of crates.io.
#[test]
fn a_registry_can_show_what_they_are() {
    let metadata = metadata();
    for package in published(&metadata) {
        let name = name(package);
        for member in ["description", "license", "documentation", "rust_version"] {
            assert!(package[member].is_string(), "{name} has no {member}");
        }
        let words = |member: &str| -> Vec<&str> {
            let words = package[member].as_array().unwrap().iter();
            words.map(|word| word.as_str().unwrap()).collect()
        };
        let keywords = words("keywords");
        assert!((1..=5).contains(&keywords.len()), "{name} {keywords:?}");
        assert!(keywords.iter().all(|it| it.len() <= 20), "{keywords:?}");
        assert!((1..=5).contains(&words("categories").len()), "{name}");
    }
}

#[test]
fn their_packages_have_a_page_and_the_licence() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for name in PUBLISHED {
        // Nothing is built, and what isn't committed yet is there, too.
        let output = Command::new(&cargo)
            .args([
                "package",
                "--list",
                "--allow-dirty",
                "--offline",
                "-p",
                name,
            ])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .output()
            .unwrap();
        let listed = String::from_utf8_lossy(&output.stdout);
        for file in ["README.md", "LICENSE", "Cargo.toml", "src/lib.rs"] {
            let is_there = listed.lines().any(|line| line == file);
            assert!(is_there, "{name} lacks {file}: {output:?}");
        }
        // Tests need crates that aren't published. Cargo adds these files itself.
        let made = [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml.orig"];
        for file in listed.lines().filter(|file| !made.contains(file)) {
            let folder = file.split_once('/').map_or("", |(folder, _)| folder);
            let is_expected = match folder {
                "" => file == "LICENSE" || file == "Cargo.toml" || file.ends_with(".md"),
                folder => ["src", "examples", "include"].contains(&folder),
            };
            assert!(is_expected, "{name} has {file}");
        }
    }
}
