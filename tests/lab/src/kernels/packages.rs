//! Packages of Debian, fetched and unpacked once into the lab's own cache.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::apt::{self, Apt, BACKPORTS, DEBIAN_11, DEBIAN_12, DEBIAN_13, Sources};
use crate::LabError;

/// A package that the lab needs.
pub(super) enum RequiredPackage<'a> {
    /// The newest cloud kernel of a series such as `6.1`.
    CloudKernel(&'a str),
    /// The package of exactly this name.
    Named(&'a str),
    /// The package of exactly this name in these sources.
    Of(&'static Sources, &'static str),
}

impl RequiredPackage<'_> {
    /// Whether a package of this name is suitable.
    fn matches(&self, package: &str) -> bool {
        match self {
            Self::CloudKernel(series) => package
                .strip_prefix("linux-image-")
                .and_then(|rest| rest.strip_suffix("-cloud-amd64"))
                .and_then(|version| version.strip_prefix(series))
                // `6.1` is not `6.12`, and a bare series is a meta-package.
                .is_some_and(|rest| rest.starts_with('.')),
            Self::Named(name) | Self::Of(_, name) => package == *name,
        }
    }

    /// The pattern of such packages' names, for apt-cache and for messages.
    fn pattern(&self) -> String {
        match self {
            Self::CloudKernel(series) => {
                format!(
                    "^linux-image-{}[.].*-cloud-amd64$",
                    series.replace('.', "[.]")
                )
            }
            Self::Named(name) | Self::Of(_, name) => {
                format!("^{}$", name.replace('.', "[.]").replace('+', "[+]"))
            }
        }
    }
}

/// The folder for packages: `KVMPROF_CACHE`, or `kvmprof` in `XDG_CACHE_HOME` or `~/.cache`.
///
/// # Errors
/// [`LabError::NoCacheFolder`] if none of the three is set.
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
/// If apt doesn't know the package, or it cannot be fetched.
pub fn busybox() -> Result<PathBuf, LabError> {
    let root = debian_package("busybox-static")?;
    ["bin/busybox", "usr/bin/busybox"]
        .iter()
        .map(|place| root.join(place))
        .find(|path| path.is_file())
        .ok_or_else(|| LabError::PackageUnknown {
            pattern: "busybox-static with bin/busybox".to_owned(),
        })
}

/// Debian's passt, which is linked to the C library. Fetched on first use.
///
/// # Errors
/// If apt doesn't know the package, or it cannot be fetched.
pub fn passt() -> Result<PathBuf, LabError> {
    let path = debian_package("passt")?.join("usr/bin/passt");
    if path.is_file() {
        return Ok(path);
    }
    Err(LabError::PackageUnknown {
        pattern: "passt with usr/bin/passt".to_owned(),
    })
}

/// The folder into which Debian's package of this name is unpacked. Fetched on first use.
///
/// # Errors
/// If apt doesn't know the package, or it cannot be fetched.
pub fn debian_package(name: &'static str) -> Result<PathBuf, LabError> {
    unpacked(&RequiredPackage::Named(name))
}

/// The folder into which a package of Debian 12's backports is unpacked. Fetched on first use.
///
/// # Errors
/// If the package cannot be fetched.
pub(crate) fn backport(package: &'static str) -> Result<PathBuf, LabError> {
    unpacked(&RequiredPackage::Of(&BACKPORTS, package))
}

/// The folder into which the package of Debian 12 of this name is unpacked; the machine may have another version. Fetched on first use.
///
/// # Errors
/// If the package cannot be fetched.
pub fn debian_12_package(name: &'static str) -> Result<PathBuf, LabError> {
    unpacked_in("debian-12", &RequiredPackage::Of(&DEBIAN_12, name))
}

/// The same of Debian 13.
///
/// # Errors
/// If the package cannot be fetched.
pub fn debian_13_package(name: &'static str) -> Result<PathBuf, LabError> {
    unpacked_in("debian-13", &RequiredPackage::Of(&DEBIAN_13, name))
}

/// The folder into which a package that only Debian 11 has is unpacked. Fetched on first use.
///
/// # Errors
/// If the package cannot be fetched.
pub fn debian_11_package(name: &'static str) -> Result<PathBuf, LabError> {
    unpacked(&RequiredPackage::Of(&DEBIAN_11, name))
}

/// The folder into which the newest such package is unpacked.
pub(super) fn unpacked(wanted: &RequiredPackage) -> Result<PathBuf, LabError> {
    unpacked_in("", wanted)
}

/// The same, among those in the folder `place` of the packages: releases have packages of the same names.
fn unpacked_in(place: &str, wanted: &RequiredPackage) -> Result<PathBuf, LabError> {
    let packages = cache_folder()?.join("packages").join(place);
    if let Some(found) = newest_cached(&packages, wanted) {
        return Ok(found);
    }
    let _lock = lock(&packages)?;
    // Another process may have fetched it meanwhile.
    match newest_cached(&packages, wanted) {
        Some(found) => Ok(found),
        None => fetch(&packages, wanted),
    }
}

/// The folder `name` among the packages. If it isn't there, `fetch` makes a tree in the folder that it gets, which becomes that folder.
pub(super) fn fetched_once(
    name: &str,
    fetch: impl FnOnce(&Path) -> Result<PathBuf, LabError>,
) -> Result<PathBuf, LabError> {
    let packages = cache_folder()?.join("packages");
    let place = packages.join(name);
    if place.is_dir() {
        return Ok(place);
    }
    let _lock = lock(&packages)?;
    if !place.is_dir() {
        let work = work_folder(&packages)?;
        let tree = fetch(work.path())?;
        fs::rename(&tree, &place).map_err(LabError::file("create", &place))?;
    }
    Ok(place)
}

/// Waits until no other process fetches packages. Dropping the file releases the lock.
fn lock(packages: &Path) -> Result<File, LabError> {
    fs::create_dir_all(packages).map_err(LabError::file("create", packages))?;
    let lock = packages.join(".lock");
    let file = File::create(&lock).map_err(LabError::file("lock", &lock))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| LabError::file("lock", &lock)(error.into()))?;
    Ok(file)
}

/// A folder beside the packages, so that an interrupted download leaves nothing that looks complete.
fn work_folder(packages: &Path) -> Result<TempDir, LabError> {
    tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(packages)
        .map_err(LabError::file("create a folder in", packages))
}

fn newest_cached(packages: &Path, wanted: &RequiredPackage) -> Option<PathBuf> {
    let names = fs::read_dir(packages).ok()?;
    let names = names
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let found = newest(names, wanted)?;
    Some(packages.join(found))
}

/// Fetches a package from its sources, or else from the machine's own, or else from Debian 12.
fn fetch(packages: &Path, wanted: &RequiredPackage) -> Result<PathBuf, LabError> {
    if let RequiredPackage::Of(sources, _) = wanted {
        return fetch_by(&Apt::of_debian(packages, sources)?, packages, wanted);
    }
    let failure = match fetch_by(&Apt::of_machine(), packages, wanted) {
        Ok(place) => return Ok(place),
        Err(failure) => failure,
    };
    eprintln!("lab: {failure}");
    fetch_by(&Apt::of_debian(packages, &DEBIAN_12)?, packages, wanted)
}

/// Downloads and unpacks beside the final place, then renames.
fn fetch_by(apt: &Apt, packages: &Path, wanted: &RequiredPackage) -> Result<PathBuf, LabError> {
    let pattern = wanted.pattern();
    let package =
        newest(apt.search(&pattern)?, wanted).ok_or(LabError::PackageUnknown { pattern })?;
    let work = work_folder(packages)?;
    eprintln!("lab: fetching {package}");
    let archive = apt.download(&package, work.path())?;
    let tree = work.path().join("tree");
    apt::unpack(&archive, &tree)?;
    let place = packages.join(&package);
    fs::rename(&tree, &place).map_err(LabError::file("create", &place))?;
    Ok(place)
}

fn newest(names: Vec<String>, wanted: &RequiredPackage) -> Option<String> {
    names
        .into_iter()
        .filter(|name| wanted.matches(name))
        .max_by_key(|name| version_key(name))
}

/// All numbers in a name, so that 6.1.0-9 comes before 6.1.0-10.
fn version_key(name: &str) -> Vec<u64> {
    name.split(|character: char| !character.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_matched_whole() {
        let wanted = RequiredPackage::CloudKernel("6.1");
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
        let newest = newest_cached(folder.path(), &RequiredPackage::CloudKernel("6.12")).unwrap();
        assert!(newest.ends_with("linux-image-6.12.10+deb12-cloud-amd64"));
        assert_eq!(
            newest_cached(folder.path(), &RequiredPackage::Named("busybox-static")),
            None
        );
    }
}
