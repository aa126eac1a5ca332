//! A child process that this process waits for, and to which it passes on signals.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The signals that end a guest.
const PASSED_ON: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Killed(u8),
}

/// Which signals a process passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassOn {
    /// All signals that end a guest.
    All,
    /// All but those of the terminal's keys. The child is in the same process group, and gets them too.
    NotFromTerminal,
}

/// The signals that are passed on, and SIGCHLD, blocked in the calling thread. They have to be blocked before there is
/// a child, so that none of them is missed. The child restores the previous signal mask.
pub struct BlockedSignals {
    blocked: SignalSet,
    earlier: SignalSet,
}

impl BlockedSignals {
    /// Blocks the signals.
    ///
    /// # Errors
    /// As of pthread_sigmask(3).
    pub fn block() -> io::Result<Self> {
        let blocked = SignalSet::of(PASSED_ON.into_iter().chain([libc::SIGCHLD]));
        let mut earlier = SignalSet::of([]);
        blocked.change(libc::SIG_BLOCK, &raw mut earlier.0)?;
        Ok(Self { blocked, earlier })
    }

    /// Restores the previous signal mask.
    ///
    /// # Errors
    /// As of pthread_sigmask(3).
    pub fn restore(&self) -> io::Result<()> {
        self.earlier.change(libc::SIG_SETMASK, ptr::null_mut())
    }

    /// Waits until `child` has ended, and passes signals on. Also returns whether a signal that ends a guest has come.
    ///
    /// # Errors
    /// `child` isn't a child of this process.
    pub fn wait(&self, child: Pid, pass_on: PassOn) -> io::Result<(End, bool)> {
        let mut was_asked = false;
        loop {
            if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG)? {
                let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
                if let Some(signal) = status.terminating_signal() {
                    return Ok((End::Killed(byte(signal)), was_asked));
                }
                if let Some(status) = status.exit_status() {
                    return Ok((End::Exited(byte(status)), was_asked));
                }
            }
            let received = self.blocked.wait()?;
            let asks = PASSED_ON.contains(&received.number);
            was_asked |= asks;
            let is_meant = pass_on == PassOn::All || !received.is_from_kernel;
            if is_meant
                && asks
                && let Some(signal) = Signal::from_named_raw(received.number)
            {
                // This fails if the child has just ended, which then needs no signal.
                let _ = kill_process(child, signal);
            }
        }
    }
}

/// A received signal.
struct ReceivedSignal {
    number: i32,
    /// Whether the kernel has sent it, as for a key of the terminal.
    is_from_kernel: bool,
}

struct SignalSet(libc::sigset_t);

impl SignalSet {
    fn of(signals: impl IntoIterator<Item = i32>) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set; the numbers are those of signals.
        Self(unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        })
    }

    fn change(&self, how: i32, earlier: *mut libc::sigset_t) -> io::Result<()> {
        // SAFETY: the set is initialised; `earlier` is null or a set that can be written.
        match unsafe { libc::pthread_sigmask(how, &raw const self.0, earlier) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for one of these signals, which are blocked.
    fn wait(&self) -> io::Result<ReceivedSignal> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        loop {
            // SAFETY: the set is initialised, and `info` has room for what is written.
            let number = unsafe { libc::sigwaitinfo(&raw const self.0, info.as_mut_ptr()) };
            if number > 0 {
                // SAFETY: zeros are a valid siginfo_t, and sigwaitinfo(2) has written one.
                let info = unsafe { info.assume_init() };
                return Ok(ReceivedSignal {
                    number,
                    is_from_kernel: info.si_code > 0,
                });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
