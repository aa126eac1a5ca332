//! Restricts a guest's process to the files that it can need once its devices are open.

use std::fs;
use std::path::{Path, PathBuf};

use kvmprof_sandbox::paths::{self, Restricted, Use};
use kvmprof_sandbox::{process, user};

use super::file_sizes::longest_file;
use super::{VmConfig, VmError};
use kvmprof_machine::console::Console;
use kvmprof_machine::{KernelSource, MemoryBacking};
use kvmprof_profiling::ProfilingConfig;

/// Restricts this thread, and those that it starts, to these files. `/dev/kvm`, disks, networks and sockets are open already.
pub(super) fn restrict_paths(config: &VmConfig) -> Result<(), VmError> {
    restrict(&rules(config))
}

fn restrict(rules: &[(PathBuf, Use)]) -> Result<(), VmError> {
    if paths::restrict(rules)? == Restricted::No {
        log::warn!(
            "The sandbox lacks restrictions of files (Landlock): this host's kernel has none"
        );
    }
    Ok(())
}

/// Restricts this thread, and those that it starts, to the files that are needed to profile a guest of another program as `profiling` says. What is read
/// of that program is open already.
pub(crate) fn restrict_to_outputs(profiling: &ProfilingConfig) -> Result<(), VmError> {
    let mut rules: Vec<(PathBuf, Use)> =
        vec![("/proc".into(), Use::Read), ("/sys".into(), Use::Read)];
    rules.extend(profiling_rules(profiling));
    restrict(&rules)
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
    let initrd = config.machine.initrd.iter();
    rules.extend(initrd.map(|path| (path.clone(), Use::Read)));
    if let Console::File(path) = &config.console {
        rules.push((path.clone(), Use::Write));
    }
    if let MemoryBacking::File(path) = &config.machine.memory.backing {
        rules.push(made(path));
    }
    let ports = config.vsock.iter().map(|vsock| &vsock.path);
    rules.extend(ports.map(|path| (folder(path), Use::Replace)));
    rules.extend(profiling_rules(&config.profiling));
    rules
}

/// The rules for the guest's files, the recording and the socket.
fn profiling_rules(profiling: &ProfilingConfig) -> impl Iterator<Item = (PathBuf, Use)> {
    let sysroot = profiling.sysroot.iter();
    let read = sysroot.map(|path| (path.clone(), Use::Read));
    let record = profiling.record.iter();
    let socket = profiling.socket.iter();
    read.chain(record.map(|record| replaced(&record.path)))
        .chain(socket.map(|path| (folder(path), Use::Replace)))
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
