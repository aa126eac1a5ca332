//! The filter of a program that runs no guest: it may do its own work, whatever calls that takes, and may not act on others.

use std::io;

use libc::{
    SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bpf, SYS_chroot, SYS_clock_adjtime, SYS_clock_settime,
    SYS_clone, SYS_clone3, SYS_delete_module, SYS_execve, SYS_execveat, SYS_fanotify_init,
    SYS_finit_module, SYS_fork, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_init_module,
    SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_ioctl, SYS_ioperm, SYS_iopl,
    SYS_kcmp, SYS_kexec_file_load, SYS_kexec_load, SYS_keyctl, SYS_migrate_pages, SYS_mknod,
    SYS_mknodat, SYS_modify_ldt, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_move_pages,
    SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open, SYS_pidfd_getfd, SYS_pivot_root,
    SYS_process_madvise, SYS_process_mrelease, SYS_process_vm_readv, SYS_process_vm_writev,
    SYS_ptrace, SYS_quotactl, SYS_reboot, SYS_request_key, SYS_setdomainname, SYS_sethostname,
    SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2, SYS_unshare,
    SYS_userfaultfd, SYS_vfork, SYS_vhangup,
};

use super::apply::install;
use crate::state::{self, Mechanism};

/// Calls that look into other processes or change them, execute a program, start a process, load code into the kernel, open the kernel's own events, mount, make
/// namespaces and devices, or set what the whole host has. `io_uring` makes calls that no filter sees.
const REFUSED: &[libc::c_long] = &[
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_process_mrelease,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_move_pages,
    SYS_migrate_pages,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_execve,
    SYS_execveat,
    SYS_fork,
    SYS_vfork,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_mknod,
    SYS_mknodat,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_open_by_handle_at,
    SYS_fanotify_init,
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
    SYS_syslog,
    SYS_vhangup,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_sethostname,
    SYS_setdomainname,
];

/// BPF_LD | BPF_W | BPF_ABS, of `struct seccomp_data` (kernel: include/uapi/linux/seccomp.h).
const LOAD: u16 = 0x20;
/// BPF_ALU | BPF_AND | BPF_K.
const AND: u16 = 0x54;
/// BPF_JMP | BPF_JEQ | BPF_K.
const IF_EQUAL: u16 = 0x15;
/// BPF_JMP | BPF_JGE | BPF_K.
const IF_AT_LEAST: u16 = 0x35;
/// BPF_RET | BPF_K.
const RETURN: u16 = 0x06;

/// Offsets into `struct seccomp_data`: the call's number, the architecture, the low halves of the first two arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST: u32 = 16;
const SECOND: u32 = 24;
/// AUDIT_ARCH_X86_64.
const X86_64: u32 = 0xc000_003e;
/// `__X32_SYSCALL_BIT`: the same calls by other numbers.
const X32: u32 = 0x4000_0000;

/// From now on this thread, and those that it starts, can act on no other process and on nothing that the whole host has: calls for that fail with EPERM. They can
/// start threads. Calls for files, connections and memory aren't restricted.
///
/// # Errors
/// The host's kernel has no filters, or refuses this one.
pub fn refuse_to_leave() -> io::Result<()> {
    install(&program(), 0)?;
    state::note(Mechanism::SystemCalls, "on");
    Ok(())
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Returns this if the last comparison was true.
fn then(action: u32) -> libc::sock_filter {
    instruction(RETURN, 0, 0, action)
}

fn errno(error: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | error.unsigned_abs()
}

fn program() -> Vec<libc::sock_filter> {
    let refused = errno(libc::EPERM);
    let number = |call: libc::c_long| u32::try_from(call).unwrap_or(u32::MAX);
    let thread = libc::CLONE_THREAD.unsigned_abs();
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(IF_EQUAL, 1, 0, X86_64),
        then(libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(IF_AT_LEAST, 0, 1, X32),
        then(refused),
        // Its flags are in memory, which a filter can't read. C libraries use clone(2) instead then.
        instruction(IF_EQUAL, 0, 1, number(SYS_clone3)),
        then(errno(libc::ENOSYS)),
        instruction(IF_EQUAL, 0, 5, number(SYS_clone)),
        instruction(LOAD, 0, 0, FIRST),
        instruction(AND, 0, 0, thread),
        instruction(IF_EQUAL, 0, 1, thread),
        then(libc::SECCOMP_RET_ALLOW),
        then(refused),
        // Input that a terminal's shell would take for its user's.
        instruction(IF_EQUAL, 0, 4, number(SYS_ioctl)),
        instruction(LOAD, 0, 0, SECOND),
        instruction(
            IF_EQUAL,
            0,
            1,
            u32::try_from(libc::TIOCSTI).unwrap_or(u32::MAX),
        ),
        then(refused),
        then(libc::SECCOMP_RET_ALLOW),
    ];
    for call in REFUSED {
        program.push(instruction(IF_EQUAL, 0, 1, number(*call)));
        program.push(then(refused));
    }
    program.push(then(libc::SECCOMP_RET_ALLOW));
    program
}
