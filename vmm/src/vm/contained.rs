//! Restricts a guest's process to the files that it can need once its devices are open.

use std::fs;
use std::path::{Path, PathBuf};

use kvmprof_sandbox::paths::{self, Restricted, Use};
use kvmprof_sandbox::{process, user};

use super::file_sizes::longest_file;
use super::{VmConfig, VmError};
use kvmprof_machine::console::Console;
use kvmprof_machine::{KernelSource, MemoryBacking};

/// Restricts this thread, and those that it starts, to these files. `/dev/kvm`, disks, networks and sockets are open already.
pub(super) fn restrict_paths(config: &VmConfig) -> Result<(), VmError> {
    if paths::restrict(&rules(config))? == Restricted::No {
        log::warn!(
            "The sandbox lacks restrictions of files (Landlock): this host's kernel has none"
        );
    }
    Ok(())
}

/// Limits the length of files that the process writes, if its options limit the length of each of them. Call this when the guest's memory
/// exists.
pub(super) fn limit_files(config: &VmConfig) -> Result<(), VmError> {
    match longest_file(config) {
        Some(bytes) => process::limit_files(bytes).map_err(VmError::host("to limit files")),
        None => Ok(()),
    }
}

/// Runs `action` as the user that kvmprof will become, if there is one ([`user::choose`]). Files that it makes belong to that user.
pub(super) fn as_user<T, E>(action: impl FnOnce() -> Result<T, E>) -> Result<T, VmError>
where
    VmError: From<E>,
{
    let done = user::acting(action).map_err(VmError::host("to act as another user"))?;
    Ok(done?)
}

fn rules(config: &VmConfig) -> Vec<(PathBuf, Use)> {
    // The kernel's files about this process and the host.
    let mut rules: Vec<(PathBuf, Use)> =
        vec![("/proc".into(), Use::Read), ("/sys".into(), Use::Read)];
    if let KernelSource::Path(kernel) = &config.machine.kernel {
        rules.push((kernel.clone(), Use::Read));
    }
    let read = config
        .machine
        .initrd
        .iter()
        .chain(&config.profiling.sysroot);
    rules.extend(read.map(|path| (path.clone(), Use::Read)));
    if let Console::File(path) = &config.console {
        rules.push((path.clone(), Use::Write));
    }
    if let MemoryBacking::File(path) = &config.machine.memory.backing {
        rules.push(made(path));
    }
    if let Some(record) = &config.profiling.record {
        rules.push(replaced(&record.path));
    }
    let sockets = config
        .profiling
        .socket
        .iter()
        .chain(config.vsock.iter().map(|vsock| &vsock.path));
    rules.extend(sockets.map(|path| (folder(path), Use::Replace)));
    rules
}

/// The rule for a file that is made if it doesn't exist.
fn made(path: &Path) -> (PathBuf, Use) {
    match path.exists() {
        true => (path.to_owned(), Use::Write),
        false => (folder(path), Use::Replace),
    }
}

/// The rule for a file that another file replaces, unless it is a device or a pipe.
fn replaced(path: &Path) -> (PathBuf, Use) {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&path) {
        Ok(found) if !found.is_file() => (path, Use::Write),
        _ => (folder(&path), Use::Replace),
    }
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => ".".into(),
    }
}
