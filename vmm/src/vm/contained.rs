//! Restricts a process to the files that it can need once a guest's devices are open.

use std::path::PathBuf;

use kvmprof_sandbox::paths::{self, Restricted, Use};
use kvmprof_sandbox::{process, user};

use super::file_sizes::longest_file;
use super::{VmConfig, VmError};
use kvmprof_profiling::ProfilingConfig;

/// Restricts this thread, and those that it starts, to the files that may still be opened to profile a guest as `profiling` says. All that is written to is
/// open, and so are the kernel and the initial RAM disk, or what another program shows of its guest.
pub(crate) fn restrict_paths(profiling: &ProfilingConfig) -> Result<(), VmError> {
    // The kernel's files about this process and the host.
    let of_kernel = ["/proc", "/sys"].map(PathBuf::from);
    let sysroot = profiling.sysroot.iter().cloned();
    let read = of_kernel.into_iter().chain(sysroot);
    let rules: Vec<(PathBuf, Use)> = read.map(|path| (path, Use::Read)).collect();
    if paths::restrict(&rules)? == Restricted::No {
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
