//! Why a vCPU's thread couldn't be traced.

use std::io;

use libc::pid_t;

/// Why a vCPU couldn't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// ptrace(2) is refused.
    #[error("Thread {tid} can't be traced ({source}): that takes CAP_SYS_PTRACE")]
    Refused {
        /// The thread.
        tid: pid_t,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread has a seccomp filter, which can't be suspended.
    #[error(
        "Thread {tid} can't be traced, since its seccomp filter can't be suspended ({source}): that takes CAP_SYS_ADMIN, \
         and a host kernel with CONFIG_CHECKPOINT_RESTORE"
    )]
    Filtered {
        /// The thread.
        tid: pid_t,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread has a shadow stack, with which no return frame can be made for it.
    #[error(
        "Thread {tid} can't be traced, since it has a shadow stack (shstk in x86_Thread_features of /proc/PID/status)"
    )]
    ShadowStack {
        /// The thread.
        tid: pid_t,
    },
    /// The thread executes a restartable sequence.
    #[error("The thread is in a restartable sequence (rseq(2)), in which it can't be moved")]
    Restartable,
    /// What tells whether the thread executes a restartable sequence can't be read.
    #[error("Whether the thread is in a restartable sequence (rseq(2)) can't be read: {0}")]
    Sequence(io::Error),
    /// The thread has got a signal that can't be put off.
    #[error("The thread has got signal {0} while it was looked at")]
    Signal(i32),
    /// The thread has ended.
    #[error("The thread has ended")]
    Gone,
    /// The program that the thread executes doesn't have the instructions at the known addresses.
    #[error(
        "The thread executes another program than at first, or that program's C library isn't where it was"
    )]
    OtherProgram,
    /// The thread hasn't stopped in time.
    #[error("The thread doesn't stop")]
    Slow,
    /// The thread executes no 64-bit code.
    #[error("The thread executes 32-bit code")]
    Not64Bit,
    /// ptrace(2) has failed on a traced thread.
    #[error("The thread can't be controlled: {0}")]
    Wait(io::Error),
    /// The thread's registers can't be read or set.
    #[error("The thread's registers can't be read or set: {0}")]
    Registers(io::Error),
    /// The thread's stack can't be used.
    #[error("The memory below the thread's stack can't be used: {0}")]
    Stack(io::Error),
    /// The thread's registers have an unknown form.
    #[error("The processor's extended registers have an unknown form")]
    Unknown,
    /// KVM has refused the vCPU's registers.
    #[error("KVM doesn't tell the vCPU's registers: {0}")]
    Kvm(io::Error),
    /// The look has taken so long that the vCPU was released before its end.
    #[error("The vCPU was let go, since kvmprof took too long to look at it")]
    Overdue,
    /// The process that traces has ended.
    #[error("kvmprof's process that traces the VMM has ended")]
    NoTracer,
}

impl TraceError {
    /// Whether the system has answered that there is no such stopped thread (ESRCH). A thread that this one has stopped continues by itself only to end, once it
    /// is killed.
    pub(super) fn is_due_to_a_killed_thread(&self) -> bool {
        let source = match self {
            Self::Refused { source, .. } | Self::Filtered { source, .. } => source,
            Self::Sequence(source)
            | Self::Wait(source)
            | Self::Registers(source)
            | Self::Stack(source) => source,
            _ => return false,
        };
        source.raw_os_error() == Some(libc::ESRCH)
    }
}
