//! Debian packages: fetched and unpacked once, into a cache of our own.

use std::cmp::Reverse;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::{FlockOperation, flock};

use crate::LabError;

/// A package that the lab needs.
pub(super) enum Wanted<'a> {
    /// The newest cloud kernel of a series such as `6.1`.
    CloudKernel(&'a str),
    /// Busybox, linked statically.
    Busybox,
}

impl Wanted<'_> {
    /// Whether a package of this name will do.
    fn matches(&self, package: &str) -> bool {
        match self {
            Self::CloudKernel(series) => package
                .strip_prefix("linux-image-")
                .and_then(|rest| rest.strip_suffix("-cloud-amd64"))
                .and_then(|version| version.strip_prefix(series))
                // `6.1` is not `6.12`, and a bare series is a meta-package.
                .is_some_and(|rest| rest.starts_with('.')),
            Self::Busybox => package == "busybox-static",
        }
    }

    /// For apt-cache, and for people: what such packages are called.
    fn pattern(&self) -> String {
        match self {
            Self::CloudKernel(series) => {
                format!(
                    "^linux-image-{}[.].*-cloud-amd64$",
                    series.replace('.', "[.]")
                )
            }
            Self::Busybox => "^busybox-static$".to_owned(),
        }
    }
}

/// Where packages are kept: `KVMPROF_CACHE`, or `kvmprof` in `XDG_CACHE_HOME`
/// or `~/.cache`.
///
/// # Errors
/// [`LabError::NoCacheFolder`] when none of the three is set.
pub fn cache_folder() -> Result<PathBuf, LabError> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = variable("KVMPROF_CACHE") {
        return Ok(PathBuf::from(cache));
    }
    variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")))
        .map(|parent| parent.join("kvmprof"))
        .ok_or(LabError::NoCacheFolder)
}

/// Debian's statically linked busybox. Fetched on first use.
///
/// # Errors
/// A package unknown to apt, or one that cannot be fetched.
pub fn busybox() -> Result<PathBuf, LabError> {
    let root = unpacked(&Wanted::Busybox)?;
    ["bin/busybox", "usr/bin/busybox"]
        .iter()
        .map(|place| root.join(place))
        .find(|path| path.is_file())
        .ok_or_else(|| LabError::PackageUnknown {
            pattern: "busybox-static with bin/busybox".to_owned(),
        })
}

/// The folder into which the newest such package is unpacked.
pub(super) fn unpacked(wanted: &Wanted) -> Result<PathBuf, LabError> {
    let packages = cache_folder()?.join("packages");
    if let Some(found) = newest_cached(&packages, wanted) {
        return Ok(found);
    }
    fs::create_dir_all(&packages).map_err(LabError::file("create", &packages))?;
    let lock = packages.join(".lock");
    let lock_file = File::create(&lock).map_err(LabError::file("create", &lock))?;
    flock(&lock_file, FlockOperation::LockExclusive)
        .map_err(|error| LabError::file("lock", &lock)(error.into()))?;
    // Another process may have been quicker; the lock goes with its file.
    match newest_cached(&packages, wanted) {
        Some(found) => Ok(found),
        None => fetch(&packages, wanted),
    }
}

fn newest_cached(packages: &Path, wanted: &Wanted) -> Option<PathBuf> {
    let names = fs::read_dir(packages).ok()?;
    let found = names
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| wanted.matches(name))
        .max_by_key(|name| version_key(name))?;
    Some(packages.join(found))
}

/// Downloads and unpacks beside the final place, then renames: a download that
/// breaks leaves nothing that looks whole.
fn fetch(packages: &Path, wanted: &Wanted) -> Result<PathBuf, LabError> {
    let package = newest_known(wanted)?;
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(packages)
        .map_err(LabError::file("create a folder in", packages))?;
    eprintln!("lab: fetching {package}");
    run(Command::new("apt-get")
        // The sandbox user could not write into this folder.
        .args(["--quiet", "--option", "APT::Sandbox::User=root", "download"])
        .arg(&package)
        .current_dir(work.path()))?;
    let archive = fs::read_dir(work.path())
        .map_err(LabError::file("list", work.path()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| LabError::Fetch {
            command: format!("apt-get download {package}"),
            message: "it brought no package".to_owned(),
        })?;
    let tree = work.path().join("tree");
    run(Command::new("dpkg").arg("-x").arg(&archive).arg(&tree))?;
    let place = packages.join(&package);
    fs::rename(&tree, &place).map_err(LabError::file("create", &place))?;
    Ok(place)
}

fn newest_known(wanted: &Wanted) -> Result<String, LabError> {
    let pattern = wanted.pattern();
    let listed = run(Command::new("apt-cache").args(["search", "--names-only", &pattern]))?;
    let text = String::from_utf8_lossy(&listed.stdout);
    let mut names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| wanted.matches(name))
        .collect();
    names.sort_by_key(|name| Reverse(version_key(name)));
    match names.first() {
        Some(name) => Ok((*name).to_owned()),
        None => Err(LabError::PackageUnknown { pattern }),
    }
}

/// All numbers in a name, so that 6.1.0-9 comes before 6.1.0-10.
fn version_key(name: &str) -> Vec<u64> {
    name.split(|character: char| !character.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

fn run(command: &mut Command) -> Result<Output, LabError> {
    let shown = format!("{command:?}");
    let failed = |message: String| LabError::Fetch {
        command: shown.clone(),
        message,
    };
    let output = command.output().map_err(|error| {
        failed(format!(
            "{error} (the lab takes its kernels from Debian packages; \
                        see KVMPROF_LAB_KERNEL for others)"
        ))
    })?;
    if output.status.success() {
        return Ok(output);
    }
    Err(failed(
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_matched_whole() {
        let wanted = Wanted::CloudKernel("6.1");
        assert!(wanted.matches("linux-image-6.1.0-50-cloud-amd64"));
        assert!(!wanted.matches("linux-image-6.12.1+deb12-cloud-amd64"));
        assert!(!wanted.matches("linux-image-6.1.0-50-cloud-amd64-unsigned"));
        assert!(!wanted.matches("linux-image-6.1.0-50-cloud-amd64-dbg"));
        assert!(!wanted.matches("linux-image-6.1-cloud-amd64"));
        assert!(!wanted.matches("linux-image-6.1.0-50-amd64"));
    }

    #[test]
    fn the_newest_is_found_by_number() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["6.12.9+deb12", "6.12.10+deb12", "6.1.0-99"] {
            let package = format!("linux-image-{name}-cloud-amd64");
            fs::create_dir(folder.path().join(package)).unwrap();
        }
        let newest = newest_cached(folder.path(), &Wanted::CloudKernel("6.12")).unwrap();
        assert!(newest.ends_with("linux-image-6.12.10+deb12-cloud-amd64"));
        assert_eq!(newest_cached(folder.path(), &Wanted::Busybox), None);
    }

    #[test]
    fn a_failing_command_says_what_it_printed() {
        let error = run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().ends_with("failed: broken"), "{error}");
    }
}
