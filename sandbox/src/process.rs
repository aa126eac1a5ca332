//! What a process gives up permanently.

use std::ffi::OsString;
use std::io;

use rustix::fs::Mode;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit, umask,
};
use rustix::thread::{CapabilitySet, set_no_new_privs};

use crate::state::{self, Mechanism};
use crate::user::User;
use crate::{Thread, capabilities};

/// The first descriptor behind standard input, output and error.
const FIRST: u32 = 3;

/// Gives up what a program that runs a guest never needs: privileges of programs that it executes (`no_new_privs`), core dumps, which would
/// have the guest's memory, a higher limit of open files than now, and new files that others may read (umask(2)). Threads that exist
/// already keep the first of these.
///
/// # Errors
/// The system refuses a part of it.
pub fn give_up() -> io::Result<()> {
    set_no_new_privs(true)?;
    state::note(Mechanism::NoNewPrivileges, "on");
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    let files = getrlimit(Resource::Nofile);
    let no_more = Rlimit {
        maximum: files.current,
        ..files
    };
    setrlimit(Resource::Nofile, no_more)?;
    umask(Mode::RWXG | Mode::RWXO);
    Ok(())
}

/// From now on no thread of this process makes a regular file longer than `bytes`, or than a lower limit that was set before (setrlimit(2), RLIMIT_FSIZE). A longer
/// write fails with EFBIG.
///
/// # Errors
/// The system refuses it.
pub fn limit_files(bytes: u64) -> io::Result<()> {
    // SAFETY: the signal would end the process; that it does nothing changes no memory.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    let least = |limit: Option<u64>| Some(limit.map_or(bytes, |limit| limit.min(bytes)));
    let now = getrlimit(Resource::Fsize);
    let limit = Rlimit {
        current: least(now.current),
        maximum: least(now.maximum),
    };
    Ok(setrlimit(Resource::Fsize, limit)?)
}

/// From now on only processes with CAP_SYS_PTRACE can trace this process or read its memory by proc(5). Other processes of the same user
/// no longer can.
///
/// # Errors
/// The system refuses it.
pub fn hide_from_own_user() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Rights of a superuser about files of other users (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRights {
    /// None.
    None,
    /// To use them: CAP_DAC_OVERRIDE.
    Access,
    /// To use them, and to remove and replace them in folders like `/tmp`, too: CAP_FOWNER.
    AccessAndRemoval,
}

/// Gives up all rights of a superuser but these, and privileges of programs that it executes.
///
/// # Errors
/// The system refuses it.
pub fn keep_file_rights(rights: FileRights) -> io::Result<()> {
    set_no_new_privs(true)?;
    capabilities::keep_only(match rights {
        FileRights::None => CapabilitySet::empty(),
        FileRights::Access => CapabilitySet::DAC_OVERRIDE,
        FileRights::AccessAndRemoval => CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER,
    })
}

/// Gives up all rights of a superuser but those to open perf events, and privileges of programs that it executes. Kernels of Debian and Ubuntu ask for
/// CAP_SYS_ADMIN (kernel.perf_event_paranoid above 2).
///
/// # Errors
/// The system refuses it.
pub fn keep_event_rights() -> io::Result<()> {
    set_no_new_privs(true)?;
    capabilities::keep_only(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)
}

/// Gives up all rights of a superuser but those to load eBPF programs that read memory, to set them on perf events, and to look up files of the process that it
/// serves; and privileges of programs that it executes. Kernels of Debian and Ubuntu ask for CAP_SYS_ADMIN for events.
///
/// # Errors
/// The system refuses it.
pub fn keep_capture_rights() -> io::Result<()> {
    set_no_new_privs(true)?;
    capabilities::keep_only(CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)
}

/// Gives up all rights of a superuser but those to trace another process, with its filters, to have the host's kernel read its memory and take samples of it into locked
/// memory, and to look up its files; and privileges of programs that it executes.
///
/// # Errors
/// The system refuses it.
pub fn keep_tracer_rights() -> io::Result<()> {
    set_no_new_privs(true)?;
    let files = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE;
    let kernel = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::IPC_LOCK;
    let other = CapabilitySet::SYS_PTRACE | CapabilitySet::SYS_ADMIN;
    capabilities::keep_only(files | kernel | other)
}

/// Gives up all rights of a superuser but those that one of these kinds of threads keeps. This thread starts them later.
///
/// # Errors
/// The system refuses it.
pub fn keep_rights_of(threads: &[Thread]) -> io::Result<()> {
    capabilities::keep_any(threads)
}

/// Becomes `user`, without any right of a superuser, and gives up privileges of programs that it executes: for a process that does a few
/// things for that user.
///
/// # Errors
/// The system refuses it.
pub fn become_user(user: &User) -> io::Result<()> {
    set_no_new_privs(true)?;
    user.become_for_good()
}

/// Closes the files that the process has inherited, except standard input, output and error, and those that `arguments` name as
/// `/dev/fd/N` or `/proc/self/fd/N`. Call it before the process has opened any file.
///
/// # Errors
/// The host's kernel has no close_range(2); it came with Linux 5.9.
pub fn close_inherited(arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut kept: Vec<u32> = arguments
        .flat_map(|it| named(&it.to_string_lossy()))
        .collect();
    kept.sort_unstable();
    let mut first = FIRST;
    for file in kept.into_iter().chain([u32::MAX]) {
        if first < file {
            close(first, file - 1)?;
        }
        first = first.max(file.saturating_add(1));
    }
    Ok(())
}

/// The inherited files that an argument names. Other words may precede a path, as in `file:/dev/fd/3`.
fn named(argument: &str) -> Vec<u32> {
    let places = ["/dev/fd/", "/proc/self/fd/"];
    let behind = places
        .iter()
        .flat_map(|place| argument.split(place).skip(1));
    let number = |text: &str| {
        let end = text.find(|it: char| !it.is_ascii_digit());
        text.get(..end.unwrap_or(text.len()))?.parse().ok()
    };
    behind.filter_map(number).collect()
}

fn close(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: nothing in this process owns one of these files.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_descriptors_are_named_as_in_shells() {
        assert_eq!(named("/dev/fd/63"), [63]);
        assert_eq!(named("file:/proc/self/fd/12,x=/dev/fd/4"), [4, 12]);
        assert_eq!(named("/dev/fd/x"), [0; 0]);
        assert_eq!(named("/dev/kvm"), [0; 0]);
    }
}
