//! Gives a thread its filter, which was compiled when kvmprof was built (`build/main.rs`).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::thread::set_no_new_privs;

use crate::thread::{OWN_PROCESS, Thread};

include!(concat!(env!("OUT_DIR"), "/filters.rs"));

/// BPF_JMP | BPF_JEQ | BPF_K.
const IF_EQUAL: u16 = 0x15;
/// BPF_RET | BPF_K.
const RETURN: u16 = 0x06;

/// Whether the kernel has what [`apply`] needs.
pub(super) fn probe() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    // SAFETY: it reads one number of 32 bits.
    let known = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    match known {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Applies the filter of `thread` to this thread. A call that it doesn't allow raises SIGSYS.
///
/// # Errors
/// The kernel refuses the filter.
pub(super) fn apply(thread: Thread) -> io::Result<()> {
    install(&program(thread), 0).map(drop)
}

/// As [`apply`], but a call that the filter doesn't allow waits until the owner of the returned descriptor continues it (seccomp_unotify(2)).
///
/// # Errors
/// The kernel refuses the filter.
pub(super) fn apply_watched(thread: Thread) -> io::Result<OwnedFd> {
    let mut program = program(thread);
    for instruction in &mut program {
        // This is the answer for calls that aren't in the table.
        if instruction.k == libc::SECCOMP_RET_TRAP && instruction.code == RETURN {
            instruction.k = libc::SECCOMP_RET_USER_NOTIF;
        }
    }
    let listener = install(&program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel has just made this descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// The filter of `thread` in this process.
fn program(thread: Thread) -> Vec<libc::sock_filter> {
    let mut program = PROGRAMS[thread as usize].to_vec();
    for instruction in &mut program {
        if instruction.k == OWN_PROCESS && instruction.code == IF_EQUAL {
            instruction.k = std::process::id();
        }
    }
    program
}

/// Installs a filter. Returns the kernel's answer, which is a descriptor with some flags.
pub(super) fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<i32> {
    // A thread without CAP_SYS_ADMIN may have a filter only after this.
    set_no_new_privs(true)?;
    let program = libc::sock_fprog {
        len: program.len().try_into().unwrap_or(u16::MAX),
        // The kernel only reads it.
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the program lives until the kernel has copied it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match i32::try_from(answer) {
        Ok(answer @ 0..) => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}
