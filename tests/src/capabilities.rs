//! Programs that run with few capabilities (capabilities(7)).

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::not_run::not_run;
use crate::place::in_lab;
use crate::seccomp;

/// The user `nobody`, and its group.
pub const NOBODY: u32 = 65534;

/// A capability, by its number (`include/uapi/linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Ignore the permissions of files.
    DacOverride = 1,
    /// Read any file.
    DacReadSearch = 2,
    /// Lock memory, as rings of perf events are.
    IpcLock = 14,
    /// Look into other processes.
    SysPtrace = 19,
    /// Many things; here: suspend a seccomp filter.
    SysAdmin = 21,
    /// Observe by perf events and eBPF.
    Perfmon = 38,
    /// Load eBPF programs.
    Bpf = 39,
}

/// Allows a system call.
const ALLOW: libc::sock_filter = seccomp::action(libc::SECCOMP_RET_ALLOW);

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// Makes `command` run as the user `nobody` with these capabilities and no others.
pub fn as_nobody_with(command: &mut Command, capabilities: &'static [Capability]) {
    // SAFETY: the closure only makes system calls, which may be made between fork and exec.
    unsafe { command.pre_exec(move || become_nobody(capabilities)) };
}

/// Makes `command`, which root starts, run as root with these capabilities and no others.
pub fn as_root_with(command: &mut Command, capabilities: &'static [Capability]) {
    let is_kept = |number| {
        let mut kept = capabilities.iter();
        kept.any(|capability| libc::c_ulong::from(*capability as u8) == number)
    };
    let drop_others = move || {
        // No kernel has more.
        for number in (0..64).filter(|number| !is_kept(*number)) {
            // SAFETY: this only changes the capabilities of the program. The kernel refuses one that it doesn't have.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls, which may be made between fork and exec.
    unsafe { command.pre_exec(drop_others) };
}

/// The host's rule for perf events, and its highest value for which CAP_PERFMON is enough.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
const ENOUGH: i32 = 2;

/// Makes CAP_PERFMON enough for perf events in the lab, whose kernel is Debian's, for tests whose own process runs contained threads: unlike kvmprof, that process
/// has no other one that opens events for them.
///
/// # Panics
/// If the lab refuses it.
pub fn make_perfmon_enough_in_lab() {
    if in_lab() {
        fs::write(PARANOID, ENOUGH.to_string()).unwrap();
    }
}

/// Whether CAP_PERFMON is enough for perf events, as it is for kernels other than those of Debian and Ubuntu. In the lab, whose kernel is Debian's, it is from now
/// on.
///
/// # Panics
/// If the host doesn't tell.
pub fn is_perfmon_enough() -> bool {
    make_perfmon_enough_in_lab();
    let paranoid: i32 = fs::read_to_string(PARANOID)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let is = paranoid <= ENOUGH;
    if !is {
        not_run("what CAP_PERFMON is enough for: this host asks for CAP_SYS_ADMIN");
    }
    is
}

/// Makes `command` run with a seccomp filter that allows everything.
pub fn with_seccomp_filter(command: &mut Command) {
    // SAFETY: the closure only makes system calls, which may be made between fork and exec.
    unsafe { command.pre_exec(|| seccomp::filter(&mut [ALLOW])) };
}

/// Makes `command` run as on a kernel without the system call with this number, which fails with ENOSYS.
pub fn without_system_call(command: &mut Command, number: i64) {
    let number = u32::try_from(number).unwrap();
    let refuse = move || {
        seccomp::filter(&mut [
            seccomp::load(seccomp::NUMBER),
            seccomp::skip(number, 0, 1),
            seccomp::action(libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()),
            ALLOW,
        ])
    };
    // SAFETY: the closure only makes system calls, which may be made between fork and exec.
    unsafe { command.pre_exec(refuse) };
}

fn become_nobody(capabilities: &[Capability]) -> io::Result<()> {
    let all = capabilities
        .iter()
        .fold(0_u64, |all, capability| all | 1 << *capability as u8);
    // The lower halves of the effective, permitted and inheritable sets, then their upper halves.
    let halves = [all & u64::from(u32::MAX), all >> 32];
    let data = halves.map(|half| [u32::try_from(half).unwrap_or_default(); 3]);
    let header = [VERSION, 0];
    // SAFETY: these only change this process's credentials. capset(2) gets a header and two times three 32-bit numbers.
    unsafe {
        check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0).into())?;
        check(libc::syscall(libc::SYS_setgroups, 0, 0))?;
        check(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY))?;
        check(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY))?;
        check(libc::syscall(
            libc::SYS_capset,
            header.as_ptr(),
            data.as_ptr(),
        ))?;
        for capability in capabilities {
            let number = libc::c_ulong::from(*capability as u8);
            let raise = libc::PR_CAP_AMBIENT_RAISE;
            check(libc::prctl(libc::PR_CAP_AMBIENT, raise, number, 0, 0).into())?;
        }
    }
    Ok(())
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
