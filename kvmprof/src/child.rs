//! A process that another one waits for, which passes on the signals that are meant for it.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The signals that end a guest.
const PASSED_ON: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this status.
    Exited(u8),
    /// By this signal.
    Killed(u8),
}

/// Which signals a process passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassOn {
    /// All that end a guest.
    All,
    /// Not those that a key of the terminal makes: the child is of the same process group, and gets them too.
    NotFromTerminal,
}

/// The signals that are passed on, and SIGCHLD, blocked in the calling thread. To be blocked before there is a child, so that none of
/// its signals is missed; the child restores what was before.
pub struct BlockedSignals {
    blocked: SignalSet,
    earlier: SignalSet,
}

impl BlockedSignals {
    /// Blocks them.
    ///
    /// # Errors
    /// What pthread_sigmask(3) says.
    pub fn block() -> io::Result<Self> {
        let blocked = SignalSet::of(PASSED_ON.into_iter().chain([libc::SIGCHLD]));
        let mut earlier = SignalSet::of([]);
        blocked.change(libc::SIG_BLOCK, &raw mut earlier.0)?;
        Ok(Self { blocked, earlier })
    }

    /// Blocks what was blocked before.
    ///
    /// # Errors
    /// What pthread_sigmask(3) says.
    pub fn restore(&self) -> io::Result<()> {
        self.earlier.change(libc::SIG_SETMASK, ptr::null_mut())
    }

    /// Waits until `child` has ended, and passes signals on. Says also whether there was one of those that end a guest.
    ///
    /// # Errors
    /// It is no child of this process.
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
                // One that has just ended needs none.
                let _ = kill_process(child, signal);
            }
        }
    }
}

/// A signal that was waited for.
struct Received {
    number: i32,
    /// Such as one that a key of the terminal makes.
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
    fn wait(&self) -> io::Result<Received> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        loop {
            // SAFETY: the set is initialised, and `info` has room for what is written.
            let number = unsafe { libc::sigwaitinfo(&raw const self.0, info.as_mut_ptr()) };
            if number > 0 {
                // SAFETY: zeros are a valid siginfo_t, and sigwaitinfo(2) has written one.
                let info = unsafe { info.assume_init() };
                return Ok(Received {
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
