//! No dependency needs a newer Rust than this workspace says it needs.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What cargo knows of this workspace and its dependencies, without the network.
fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `1.88` or `1.88.0` as numbers that compare as versions do.
fn version(text: &str) -> Vec<u32> {
    let mut parts: Vec<u32> = text.split('.').map(|part| part.parse().unwrap()).collect();
    parts.resize(3, 0);
    parts
}

#[test]
fn no_dependency_needs_a_newer_rust() {
    let ours = version(env!("CARGO_PKG_RUST_VERSION"));
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{} packages", packages.len());
    let newer: Vec<String> = packages
        .iter()
        .filter_map(|package| {
            let needed = package["rust_version"].as_str()?;
            let text = || format!("{} {needed}", package["id"]);
            (version(needed) > ours).then(text)
        })
        .collect();
    assert!(newer.is_empty(), "{newer:#?}");
}
