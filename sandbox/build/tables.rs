//! The system calls that each kind of thread may make, and those that all may make.

use libc::{
    SYS_accept4, SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_epoll_ctl,
    SYS_epoll_wait, SYS_eventfd2, SYS_exit, SYS_exit_group, SYS_fallocate, SYS_fcntl,
    SYS_fdatasync, SYS_flock, SYS_fstat, SYS_fsync, SYS_ftruncate, SYS_futex, SYS_getcpu,
    SYS_getcwd, SYS_geteuid, SYS_getpid, SYS_getrandom, SYS_getsockopt, SYS_gettid, SYS_ioctl,
    SYS_kill, SYS_lseek, SYS_madvise, SYS_membarrier, SYS_mmap, SYS_mprotect, SYS_mremap,
    SYS_munmap, SYS_openat, SYS_openat2, SYS_perf_event_open, SYS_poll, SYS_ppoll, SYS_pread64,
    SYS_pwrite64, SYS_read, SYS_readv, SYS_recvfrom, SYS_recvmsg, SYS_restart_syscall, SYS_rseq,
    SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigtimedwait, SYS_sched_getaffinity,
    SYS_sched_setaffinity, SYS_sched_yield, SYS_sendmsg, SYS_sendto, SYS_setsockopt, SYS_shutdown,
    SYS_sigaltstack, SYS_statx, SYS_tgkill, SYS_timer_create, SYS_timer_delete, SYS_timer_settime,
    SYS_wait4, SYS_write, SYS_writev,
};

use crate::calls::{AllowedCall, Condition, any, is, only, request, without};
use crate::thread::{OWN_PROCESS, Thread, for_each_thread};

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident [$($table:ident)*] [$($right:ident)*],)*) => {
        impl Thread {
            /// The calls that the thread's filter allows.
            pub(crate) fn allowed(self) -> impl Iterator<Item = &'static AllowedCall> {
                let tables: &[&[AllowedCall]] = match self {
                    $(Self::$name => &[COMMON $(, $table)*],)*
                };
                tables.iter().copied().flatten()
            }
        }
    };
}
for_each_thread!(tables);

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;
const TO_READ: &[Condition] = &[without(
    2,
    (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u64,
)];
const KVM: u8 = 0xae;
const PERF: u8 = b'$';
const TERMINAL: u8 = b'T';

/// To the other end of a connection: an address, which may be a path, has no length.
const SEND: AllowedCall = only(SYS_sendto, &[is(5, 0)]);

/// Signals go to this process only.
const OF_THIS_PROCESS: &[Condition] = &[is(0, OWN_PROCESS as u64)];

/// The calls that the standard library, the allocator, a thread's end, and the report of a panic or of a forbidden call need.
const COMMON: &[AllowedCall] = &[
    any(SYS_read),
    any(SYS_write),
    any(SYS_close),
    only(SYS_mmap, &[without(2, EXECUTABLE)]),
    only(SYS_mprotect, &[without(2, EXECUTABLE)]),
    any(SYS_munmap),
    any(SYS_mremap),
    any(SYS_madvise),
    any(SYS_brk),
    any(SYS_futex),
    any(SYS_rt_sigprocmask),
    any(SYS_rt_sigreturn),
    any(SYS_restart_syscall),
    any(SYS_sigaltstack),
    any(SYS_sched_yield),
    any(SYS_sched_getaffinity),
    any(SYS_clock_gettime),
    any(SYS_clock_nanosleep),
    any(SYS_getpid),
    any(SYS_gettid),
    any(SYS_getrandom),
    any(SYS_exit),
    any(SYS_exit_group),
    any(SYS_rseq),
    any(SYS_membarrier),
    any(SYS_poll),
    any(SYS_ppoll),
    // glibc's allocator reads /proc/sys/vm/overcommit_memory when it first returns memory, on any thread. Landlock restricts the files that can be
    // opened.
    only(SYS_openat, TO_READ),
    // The standard library reads the length of an open file by statx(2) with an empty path, which a filter can't tell from another path.
    any(SYS_statx),
    any(SYS_fstat),
    any(SYS_lseek),
    // With RUST_BACKTRACE the report of a panic shortens paths.
    any(SYS_getcwd),
    // A panic asks the event thread to end the process, abort(3) raises a signal, and vCPUs' threads are kicked.
    only(SYS_kill, OF_THIS_PROCESS),
    only(SYS_tgkill, OF_THIS_PROCESS),
    only(
        SYS_ioctl,
        &[
            // TCGETS: the standard library checks if a file is a terminal.
            request(TERMINAL, 0x01),
            // TCSETS2, and TCSETS if the kernel doesn't have that: the terminal's settings are restored.
            request(TERMINAL, 0x02),
            request(TERMINAL, 0x2b),
        ],
    ),
    only(
        SYS_fcntl,
        &[
            is(1, libc::F_GETFD as u64),
            is(1, libc::F_GETFL as u64),
            is(1, libc::F_SETFL as u64),
            is(1, libc::F_DUPFD_CLOEXEC as u64),
        ],
    ),
];

/// At the end the first thread flushes images, and asks and waits for the processes that helped, such as `kvmprof-share`.
const MAIN: &[AllowedCall] = &[
    any(SYS_pread64),
    any(SYS_pwrite64),
    any(SYS_fdatasync),
    any(SYS_fsync),
    any(SYS_ftruncate),
    any(SYS_flock),
    any(SYS_shutdown),
    SEND,
    any(SYS_recvmsg),
    any(SYS_wait4),
    any(SYS_timer_delete),
    // TIOCGWINSZ: a progress bar is as wide as the terminal.
    only(SYS_ioctl, &[request(TERMINAL, 0x13)]),
];

const VCPU: &[AllowedCall] = &[
    only(
        SYS_ioctl,
        &[
            // KVM_RUN, KVM_GET_REGS, KVM_SET_REGS, KVM_GET_SREGS, KVM_SET_SREGS, KVM_TRANSLATE
            request(KVM, 0x80),
            request(KVM, 0x81),
            request(KVM, 0x82),
            request(KVM, 0x83),
            request(KVM, 0x84),
            request(KVM, 0x85),
            // KVM_GET_MP_STATE, KVM_KVMCLOCK_CTRL
            request(KVM, 0x98),
            request(KVM, 0xad),
            // At a reset: KVM_SET_IRQCHIP, KVM_SET_MSRS, KVM_SET_LAPIC, KVM_SET_MP_STATE, KVM_SET_VCPU_EVENTS and KVM_SET_PIT2,
            // KVM_SET_DEBUGREGS, KVM_SET_XSAVE, KVM_SET_XCRS
            request(KVM, 0x63),
            request(KVM, 0x89),
            request(KVM, 0x8f),
            request(KVM, 0x99),
            request(KVM, 0xa0),
            request(KVM, 0xa2),
            request(KVM, 0xa5),
            request(KVM, 0xa7),
            // PERF_EVENT_IOC_ENABLE, DISABLE, REFRESH, RESET, PERIOD, SET_FILTER, ID
            request(PERF, 0),
            request(PERF, 1),
            request(PERF, 2),
            request(PERF, 3),
            request(PERF, 4),
            request(PERF, 6),
            request(PERF, 7),
        ],
    ),
    any(SYS_rt_sigtimedwait),
    any(SYS_pread64),
    any(SYS_timer_create),
    any(SYS_timer_settime),
    any(SYS_timer_delete),
    // Only events of the calling thread.
    only(SYS_perf_event_open, &[is(1, 0)]),
    SIGNALS_OF_FILES,
    // Returns memory to the host at a reset.
    any(SYS_fallocate),
    // At a reset the thread talks to virtiofsd, and to the helper that starts it or connects to it.
    SEND,
    any(SYS_sendmsg),
    any(SYS_recvfrom),
    any(SYS_recvmsg),
    any(SYS_shutdown),
];

/// F_SETSIG and F_SETOWN_EX: the signal of a perf event, and the thread that gets it.
const SIGNALS_OF_FILES: AllowedCall = only(SYS_fcntl, &[is(1, 10), is(1, 15)]);

const EVENTS: &[AllowedCall] = &[
    any(SYS_epoll_wait),
    any(SYS_epoll_ctl),
    any(SYS_eventfd2),
    any(SYS_accept4),
    any(SYS_getsockopt),
    any(SYS_setsockopt),
    any(SYS_recvfrom),
    any(SYS_recvmsg),
    SEND,
    any(SYS_sendmsg),
    any(SYS_shutdown),
    // Only events of the calling thread, to find out what the host counts.
    only(SYS_perf_event_open, &[is(1, 0)]),
    any(SYS_pread64),
    SIGNALS_OF_FILES,
    only(
        SYS_ioctl,
        &[
            // KVM_GET_IRQCHIP: shows if the guest has unmasked the interrupt of its power button.
            request(KVM, 0x62),
            request(PERF, 0),
            request(PERF, 1),
            request(PERF, 2),
            request(PERF, 3),
            request(PERF, 4),
            request(PERF, 7),
            // TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO
            request(TERMINAL, 0x0f),
            request(TERMINAL, 0x13),
            request(TERMINAL, 0x1b),
            request(TERMINAL, 0x21),
        ],
    ),
];

/// Whoever accepts clients compares their user with its own.
const CLIENTS: &[AllowedCall] = &[any(SYS_geteuid)];

/// The files in `/proc` about a vCPU's thread are open. While a vCPU is stopped, the thread stays on one processor.
const LOOK: &[AllowedCall] = &[
    any(SYS_pread64),
    any(SYS_getcpu),
    only(SYS_sched_setaffinity, &[is(0, 0)]),
];

/// The thread waits for a tick or a kick. The process that traces the VMM has the host's kernel take samples, and delivers their clock, which is
/// started here.
const CAPTURE: &[AllowedCall] = &[
    any(SYS_rt_sigtimedwait),
    // PERF_EVENT_IOC_ENABLE
    only(SYS_ioctl, &[request(PERF, 0)]),
    SEND,
    any(SYS_recvmsg),
];

const BINARIES: &[AllowedCall] = &[
    any(SYS_pread64),
    // A read of a qcow2 image that the guest writes to may need room in the image's cache: a changed table is written then, by whoever reads. And whoever
    // has the image last, at the guest's end, flushes it.
    any(SYS_pwrite64),
    any(SYS_fdatasync),
];

/// The thread opens files below the folder so that no link leads out of it (`kvmprof_recording::Sysroot`). The call's flags are in a structure
/// that a filter can't read: where there is no such folder, no thread has the call.
const SYSROOT: &[AllowedCall] = &[any(SYS_openat2)];

/// Another process gives the recording its name.
const RECORDER: &[AllowedCall] = &[SEND, any(SYS_recvmsg)];

/// Images are read and written by `kvmprof_machine::disk` alone, whatever their format.
const DISK: &[AllowedCall] = &[
    any(SYS_pread64),
    any(SYS_pwrite64),
    any(SYS_fallocate),
    any(SYS_fdatasync),
];

const CONNECTIONS: &[AllowedCall] = &[
    SEND,
    any(SYS_sendmsg),
    any(SYS_recvfrom),
    any(SYS_recvmsg),
    any(SYS_readv),
    any(SYS_writev),
    any(SYS_shutdown),
    any(SYS_getsockopt),
    any(SYS_setsockopt),
    any(SYS_epoll_ctl),
    any(SYS_epoll_wait),
    any(SYS_accept4),
    only(
        SYS_ioctl,
        &[
            // FIONREAD, FIONBIO, TUNSETOFFLOAD
            request(TERMINAL, 0x1b),
            request(TERMINAL, 0x21),
            request(TERMINAL, 0xd0),
        ],
    ),
];

const SHARE: &[AllowedCall] = &[
    SEND,
    any(SYS_sendmsg),
    any(SYS_recvfrom),
    any(SYS_recvmsg),
    any(SYS_shutdown),
];

const END: &[AllowedCall] = &[
    // A signal handler may run on this thread, and passes the signal on by a socket.
    SEND,
    any(SYS_recvfrom),
    any(SYS_setsockopt),
    any(SYS_getsockopt),
];
