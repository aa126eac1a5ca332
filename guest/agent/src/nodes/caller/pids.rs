//! Translates the pids that a caller passes. They belong to the caller's own pid namespace, while kvmprof knows processes by their pids in
//! that of pcsd, the guest's first one.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use kvmprof_abi::errno::Errno;

use super::identity::status_of;

/// Opens the parent of a pid namespace (ioctl_ns(2)).
const NS_GET_PARENT: libc::Ioctl = 0xb702;
/// Maximum depth of nested namespaces (`MAX_PID_NS_LEVEL`, `include/linux/pid_namespace.h`).
const LEVELS_MAX: usize = 32;

/// What the numbers identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidKind {
    /// Processes.
    Process,
    /// Process groups.
    Group,
}

impl PidKind {
    /// The line of `/proc/PID/status` with these ids, one for each namespace that the process is in.
    fn line(self) -> &'static str {
        match self {
            Self::Process => "NStgid:",
            Self::Group => "NSpgid:",
        }
    }
}

/// A pid namespace, identified by the file that represents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Namespace {
    device: u64,
    inode: u64,
}

impl Namespace {
    fn of(file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// The namespace of `process`, which is a name in `/proc`.
    fn of_process(process: &str) -> Option<Self> {
        Self::of(&File::open(format!("/proc/{process}/ns/pid")).ok()?)
    }
}

/// The ids in this process's pid namespace of the processes or groups that have the ids `pids` in the thread's namespace.
///
/// # Errors
/// ESRCH if the thread isn't in this process's namespace, or the thread's namespace has no process or group with such an id.
pub(super) fn translated(thread: u32, kind: PidKind, pids: &[i32]) -> Result<Vec<i32>, Errno> {
    const NOT_FOUND: Errno = Errno(libc::ESRCH);
    if thread == 0 {
        return Err(NOT_FOUND);
    }
    let caller = thread.to_string();
    let namespace = Namespace::of_process(&caller).ok_or(NOT_FOUND)?;
    if Some(namespace) == Namespace::of_process("self") {
        return Ok(pids.to_vec());
    }
    // Any group outside of the thread's namespace is 0 there.
    if pids.contains(&0) {
        return Err(NOT_FOUND);
    }
    let level = numbers(&caller, PidKind::Process)
        .and_then(|numbers| numbers.len().checked_sub(1))
        .ok_or(NOT_FOUND)?;
    let mut translated: Vec<Option<i32>> = vec![None; pids.len()];
    for entry in fs::read_dir("/proc").map_err(|_| NOT_FOUND)?.flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
            continue;
        };
        let Some(numbers) = numbers(process, kind) else {
            continue;
        };
        let (Some(outside), Some(inside)) = (numbers.first(), numbers.get(level)) else {
            continue;
        };
        let missing = pids.iter().zip(&mut translated);
        let mut missing = missing.filter(|(pid, found)| *pid == inside && found.is_none());
        if let Some((_, found)) = missing.next()
            && is_within(process, numbers.len() - 1 - level, namespace)
        {
            *found = Some(*outside);
            missing.for_each(|(_, found)| *found = Some(*outside));
        }
    }
    let found: Option<Vec<i32>> = translated.into_iter().collect();
    found.ok_or(NOT_FOUND)
}

/// The ids of a process, or of its group, in each namespace that it is in, beginning with this process's one.
fn numbers(process: &str, kind: PidKind) -> Option<Vec<i32>> {
    let line = status_of(process, kind.line())?;
    let numbers = line.split_ascii_whitespace().take(LEVELS_MAX + 1);
    numbers.map(|number| number.parse().ok()).collect()
}

/// Whether `namespace` is the namespace `levels` levels above the process's own.
fn is_within(process: &str, levels: usize, namespace: Namespace) -> bool {
    let mut at = File::open(format!("/proc/{process}/ns/pid")).ok();
    for _ in 0..levels {
        at = at.and_then(|file| parent(&file));
    }
    at.and_then(|file| Namespace::of(&file)) == Some(namespace)
}

fn parent(namespace: &File) -> Option<File> {
    // SAFETY: the request takes no argument, and the descriptor is open.
    let descriptor = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    // SAFETY: the kernel has just opened this descriptor, and nobody else has it.
    (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_FOUND: Result<Vec<i32>, Errno> = Err(Errno(libc::ESRCH));

    #[test]
    fn pids_of_the_own_namespace_are_unchanged() {
        let own = std::process::id();
        for kind in [PidKind::Process, PidKind::Group] {
            let pids = [1, i32::MAX, 0, -1];
            assert_eq!(translated(own, kind, &pids), Ok(pids.to_vec()));
        }
    }

    #[test]
    fn a_caller_without_a_pid_is_refused() {
        for nobody in [0, u32::MAX] {
            assert_eq!(translated(nobody, PidKind::Process, &[1]), NOT_FOUND);
        }
    }

    #[test]
    fn a_process_has_a_pid_in_each_namespace() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(numbers("self", PidKind::Process).unwrap()[0], own);
        let group = rustix::process::getpgrp().as_raw_pid();
        assert_eq!(numbers("self", PidKind::Group).unwrap()[0], group);
        let namespace = Namespace::of_process("self").unwrap();
        assert!(is_within("self", 0, namespace));
        assert!(!is_within("self", LEVELS_MAX + 1, namespace));
    }
}
