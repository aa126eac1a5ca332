//! The dependencies of the workspace's crates: none needs a newer Rust than the declared one, and none is forbidden for its
//! crate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Cargo's metadata of this workspace and its dependencies, without the network.
pub(super) fn metadata() -> Value {
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

/// The names of all packages that a crate of the workspace is built with, including its own.
fn built_with(metadata: &Value, name: &str) -> BTreeSet<String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeMap<String, String> = packages
        .iter()
        .map(|package| (text(&package["id"]), text(&package["name"])))
        .collect();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let nodes: BTreeMap<String, &Value> = nodes
        .iter()
        .map(|node| (text(&node["id"]), &node["deps"]))
        .collect();
    // Those for tests only don't count.
    let is_built = |dependency: &&Value| {
        let kinds = dependency["dep_kinds"].as_array().unwrap();
        kinds.iter().any(|kind| kind["kind"].is_null())
    };
    let own = names.iter().find(|(_, known)| *known == name);
    let mut left = vec![own.unwrap_or_else(|| panic!("no crate {name}")).0.clone()];
    let mut found = BTreeSet::new();
    while let Some(id) = left.pop() {
        if found.insert(id.clone()) {
            let dependencies = nodes[&id].as_array().unwrap();
            let built = dependencies.iter().filter(is_built);
            left.extend(built.map(|dependency| text(&dependency["pkg"])));
        }
    }
    found.iter().map(|id| names[id].clone()).collect()
}

/// What crates must not be built with.
#[test]
fn crates_have_no_forbidden_dependencies() {
    let metadata = metadata();
    for (name, unknown) in [
        ("kvmprof-vmm", &["ratatui", "inferno", "prost"][..]),
        ("kvmprof-machine", &["kvmprof-introspection"]),
        ("kvmprof-profiling", &["kvmprof-vmm"]),
        (
            "kvmprof-report",
            &["virtio-queue", "virtio-bindings", "kvm-ioctls"],
        ),
        ("kvmprof-introspection", &["kvm-ioctls", "virtio-queue"]),
        ("kvmprof-introspection-fixtures", &["kvmprof-introspection"]),
        ("kvmprof-paging", &["kvm-ioctls", "kvmprof-recording"]),
        ("kvmprof", &["kvmprof-introspection-fixtures"]),
        ("kvmprof-devices", &["kvm-ioctls"]),
        ("kvmprof-recording", &["kvm-ioctls", "vm-memory"]),
        ("kvmprof-client", &["kvmprof-vmm"]),
        ("kvmprof-agent", &["kvmprof-vmm", "kvm-ioctls"]),
    ] {
        let built = built_with(&metadata, name);
        assert!(built.len() > 3, "{name}: {built:?}");
        for package in unknown {
            assert!(!built.contains(*package), "{name} is built with {package}");
        }
    }
    // They would be found.
    for (name, known) in [
        ("kvmprof-report", &["ratatui", "inferno", "prost"][..]),
        (
            "kvmprof-vmm",
            &["kvm-ioctls", "virtio-bindings", "vm-memory"],
        ),
        ("kvmprof", &["kvmprof-vmm"]),
    ] {
        let built = built_with(&metadata, name);
        for package in known {
            assert!(
                built.contains(*package),
                "{name} is built without {package}"
            );
        }
    }
}
