//! The signals that make KVM_RUN return.
//!
//! They are blocked in every thread, and let through only while a thread is inside KVM_RUN
//! (KVM_SET_SIGNAL_MASK, Linux `Documentation/virt/kvm/api.rst` 4.13). A signal that comes between the
//! last look and KVM_RUN stays pending and ends KVM_RUN at once. So no signal is lost, and no handler
//! runs.

mod kicker;

use std::io;
use std::ptr;
use std::time::Duration;

use kvm_bindings::{KVMIO, kvm_signal_mask};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;
use vmm_sys_util::signal::create_sigset;
use vmm_sys_util::syscall::SyscallReturnCode;

use crate::time::timespec;

/// Hides the undocumented function that the macro makes.
mod request {
    use super::{KVMIO, ioctl_iow_nr, kvm_signal_mask};
    ioctl_iow_nr!(KVM_SET_SIGNAL_MASK, KVMIO, 0x8b, kvm_signal_mask);
}
use request::KVM_SET_SIGNAL_MASK;

pub use kicker::Kicker;

/// The signal of a tick that is due, and of a request to look at the clock's control.
pub fn kick() -> i32 {
    libc::SIGRTMIN()
}

/// The signal of a woken vCPU's run-time alarm.
pub fn alarm() -> i32 {
    libc::SIGRTMIN() + 1
}

/// The signal of an event that the host's kernel counts.
pub fn overflow() -> i32 {
    libc::SIGRTMIN() + 2
}

/// All these signals. The kernel sends SIGIO for a signal of a perf event that finds no room (fcntl(2), F_SETSIG).
fn all() -> [i32; 4] {
    [kick(), alarm(), overflow(), libc::SIGIO]
}

/// Blocks these signals in the calling thread and all threads that it makes from now on. Call this
/// before any other thread exists.
///
/// # Errors
/// As of pthread_sigmask(3).
pub fn block() -> io::Result<()> {
    change_mask(libc::SIG_BLOCK, &all())
}

/// Changes the calling thread's mask by `signals`, as `how` says: `SIG_BLOCK` or `SIG_UNBLOCK`.
///
/// # Errors
/// As of pthread_sigmask(3).
fn change_mask(how: i32, signals: &[i32]) -> io::Result<()> {
    let set = create_sigset(signals)?;
    // SAFETY: `set` is an initialised signal set; the old one isn't wanted.
    match unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The signals that only the event thread takes: those that ask for the end, and SIGWINCH for the console.
const TAKEN: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGWINCH];

/// Blocks the signals that end the program, and SIGWINCH, in the calling thread and all threads that it makes from now
/// on, except those that take the signals. Call this before any other thread exists.
///
/// # Errors
/// As of pthread_sigmask(3).
pub fn block_signals() -> io::Result<()> {
    change_mask(libc::SIG_BLOCK, &TAKEN)
}

/// Lets the calling thread take those signals.
///
/// # Errors
/// As of pthread_sigmask(3).
pub fn take_signals_here() -> io::Result<()> {
    change_mask(libc::SIG_UNBLOCK, &TAKEN)
}

/// Lets these signals, and no others, interrupt KVM_RUN on `vcpu`.
///
/// # Errors
/// The ioctl fails.
pub fn let_through_in_kvm_run(vcpu: &VcpuFd) -> io::Result<()> {
    // `struct kvm_signal_mask` ends in an array of any length (`include/uapi/linux/kvm.h`), which its
    // Rust type can't express. The kernel's sigset has 64 bits, signal n at bit n - 1
    // (`include/linux/signal.h`).
    #[repr(C)]
    struct SignalMask {
        header: kvm_signal_mask,
        set: [u8; 8],
    }
    let through = all().map(|signal| 1_u64 << (signal - 1));
    let blocked = !through.into_iter().fold(0, |set, signal| set | signal);
    let mut mask = SignalMask {
        header: kvm_signal_mask::default(),
        set: blocked.to_le_bytes(),
    };
    mask.header.len = 8;
    // SAFETY: the kernel reads the header and the 8 bytes behind it that this says there are. Both are
    // in `mask`, without a gap between them, and the pointer is to all of it.
    let result = unsafe { ioctl_with_ref(vcpu, KVM_SET_SIGNAL_MASK(), &mask) };
    SyscallReturnCode(result).into_empty_result()
}

/// Takes one pending signal of these from the calling thread; None if none is pending.
pub fn take_pending() -> Option<i32> {
    take_one_of(&all())
}

/// Takes all pending signals of events that the host's kernel counts from the calling thread. True if there were any. There can't be many:
/// the thread has to run the guest to get another one.
pub fn take_overflows() -> bool {
    let mut any = false;
    while take_one_of(&[overflow(), libc::SIGIO]).is_some() {
        any = true;
    }
    any
}

/// Whether `signal` is the signal of an event that the host's kernel counts.
pub fn is_overflow(signal: i32) -> bool {
    signal == overflow() || signal == libc::SIGIO
}

/// Waits until the calling thread is kicked, but no longer than `timeout`.
pub fn wait_for_kick(timeout: Duration) {
    wait_for(&[kick()], timeout);
}

/// Waits for a signal that asks for the end, of those that [`block_signals`] has blocked, but no longer than `timeout`. Returns whether one has come.
pub fn wait_for_end(timeout: Duration) -> bool {
    let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    wait_for(&signals, timeout).is_some()
}

fn take_one_of(signals: &[i32]) -> Option<i32> {
    wait_for(signals, Duration::ZERO)
}

fn wait_for(signals: &[i32], timeout: Duration) -> Option<i32> {
    let set = create_sigset(signals).ok()?;
    let timeout = timespec(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    // SAFETY: `set` and `timeout` are valid; no siginfo is wanted.
    let signal = unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const timeout) };
    (signal > 0).then_some(signal)
}

/// Sends the kick signal to thread `tid` of this process. It is no error if the thread has ended.
pub fn send_kick(tid: i32) {
    // SAFETY: tgkill has no memory arguments; the thread group is our own.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, kick()) };
}
