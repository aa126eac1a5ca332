//! The system calls that lead out of a program that runs no guest.

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

use crate::calls::{Refusal, RefusedCall, is, with};

const fn refused(call: i64) -> RefusedCall {
    RefusedCall {
        call,
        when: Refusal::Always,
        error: libc::EPERM,
    }
}

/// Calls that look into other processes or change them, execute a program, start a process, load code into the kernel, open the kernel's own events, mount, make
/// namespaces and devices, or set what the whole host has. `io_uring` makes calls that no filter sees.
pub(crate) const REFUSED: &[RefusedCall] = &[
    refused(SYS_ptrace),
    refused(SYS_process_vm_readv),
    refused(SYS_process_vm_writev),
    refused(SYS_process_madvise),
    refused(SYS_process_mrelease),
    refused(SYS_pidfd_getfd),
    refused(SYS_kcmp),
    refused(SYS_move_pages),
    refused(SYS_migrate_pages),
    refused(SYS_bpf),
    refused(SYS_perf_event_open),
    refused(SYS_execve),
    refused(SYS_execveat),
    refused(SYS_fork),
    refused(SYS_vfork),
    refused(SYS_unshare),
    refused(SYS_setns),
    refused(SYS_mount),
    refused(SYS_umount2),
    refused(SYS_pivot_root),
    refused(SYS_chroot),
    refused(SYS_open_tree),
    refused(SYS_move_mount),
    refused(SYS_fsopen),
    refused(SYS_fsconfig),
    refused(SYS_fsmount),
    refused(SYS_fspick),
    refused(SYS_mount_setattr),
    refused(SYS_mknod),
    refused(SYS_mknodat),
    refused(SYS_init_module),
    refused(SYS_finit_module),
    refused(SYS_delete_module),
    refused(SYS_kexec_load),
    refused(SYS_kexec_file_load),
    refused(SYS_reboot),
    refused(SYS_swapon),
    refused(SYS_swapoff),
    refused(SYS_acct),
    refused(SYS_quotactl),
    refused(SYS_keyctl),
    refused(SYS_add_key),
    refused(SYS_request_key),
    refused(SYS_userfaultfd),
    refused(SYS_io_uring_setup),
    refused(SYS_io_uring_enter),
    refused(SYS_io_uring_register),
    refused(SYS_open_by_handle_at),
    refused(SYS_fanotify_init),
    refused(SYS_iopl),
    refused(SYS_ioperm),
    refused(SYS_modify_ldt),
    refused(SYS_syslog),
    refused(SYS_vhangup),
    refused(SYS_settimeofday),
    refused(SYS_clock_settime),
    refused(SYS_clock_adjtime),
    refused(SYS_adjtimex),
    refused(SYS_sethostname),
    refused(SYS_setdomainname),
    // Its flags are in memory, which a filter can't read. C libraries use clone(2) instead then.
    RefusedCall {
        call: SYS_clone3,
        when: Refusal::Always,
        error: libc::ENOSYS,
    },
    RefusedCall {
        call: SYS_clone,
        when: Refusal::Unless(&[with(0, libc::CLONE_THREAD as u64)]),
        error: libc::EPERM,
    },
    // Input that a terminal's shell would take for its user's.
    RefusedCall {
        call: SYS_ioctl,
        when: Refusal::If(&[is(1, libc::TIOCSTI)]),
        error: libc::EPERM,
    },
];
