//! Filters of system calls (seccomp(2)) for tests. Crates below `kvmprof-tests` have this file as a module of their tests.

use std::io;

use libc::sock_filter;

// The parts of an instruction's code (`include/uapi/linux/bpf_common.h`).
const LOAD: u16 = 0x20;
const SKIP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// The offset of the system call's number in the filter's input (`struct seccomp_data`), in bytes.
pub const NUMBER: u32 = 0;

/// Loads the 4 bytes at `offset` of the filter's input.
pub const fn load(offset: u32) -> sock_filter {
    instruction(LOAD, [0, 0], offset)
}

/// Skips this many instructions if the loaded value is `value`, and this many if it isn't.
pub const fn skip(value: u32, equal: u8, other: u8) -> sock_filter {
    instruction(SKIP_IF_EQUAL, [equal, other], value)
}

/// Ends the filter with this action.
pub const fn action(action: u32) -> sock_filter {
    instruction(RETURN, [0, 0], action)
}

const fn instruction(code: u16, [jt, jf]: [u8; 2], k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Filters the system calls of the calling thread from now on. It makes only system calls.
///
/// # Errors
/// The kernel refuses it: a thread that isn't privileged needs [`no_new_privileges`] first.
pub fn filter(instructions: &mut [sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(instructions.len()).unwrap_or(u16::MAX),
        filter: instructions.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the kernel copies the program, whose instructions are alive, and are as many as it says.
    result(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0) })
}

/// Prevents programs of the calling thread from getting more privileges than it has.
///
/// # Errors
/// The kernel refuses it.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: this only changes an attribute of the thread.
    result(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

fn result(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
