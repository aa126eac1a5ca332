//! Part of a command in a process of its own: a process that runs a guest is contained for good, and can't write other files
//! afterwards, or start programs.

use std::io;

use kvmprof_tools::command_line::ExitStatus;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::child::{BlockedSignals, End, PassOn};

/// Which of the two processes this one is.
pub enum Side {
    /// The new one.
    Child,
    /// The one that was there before; the other has ended.
    Parent {
        /// Its status.
        status: ExitStatus,
        /// Whether one of the signals came that ask for the end.
        was_asked: bool,
    },
}

/// Forks. The parent waits until the child has ended, and passes on the signals that ask for the end. The child gets SIGTERM when the
/// parent ends before it.
///
/// # Errors
/// The host gives no process.
///
/// # Safety
/// The process has no other thread: one might hold a lock that nobody releases in the child.
pub unsafe fn separate() -> io::Result<Side> {
    let signals = BlockedSignals::block()?;
    let parent = getpid();
    // SAFETY: by this function's own condition.
    match unsafe { libc::fork() } {
        -1 => {
            let error = io::Error::last_os_error();
            signals.restore()?;
            Err(error)
        }
        0 => {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            if getppid() != Some(parent) {
                return Err(io::Error::other("the process that started it has ended"));
            }
            signals.restore()?;
            Ok(Side::Child)
        }
        child => {
            let child = Pid::from_raw(child).ok_or(io::ErrorKind::Other)?;
            let ended = signals.wait(child, PassOn::NotFromTerminal);
            signals.restore()?;
            let (end, was_asked) = ended?;
            let status = ExitStatus::of_command(match end {
                End::Exited(status) => status,
                // As shells show it.
                End::Killed(signal) => signal.saturating_add(128),
            });
            Ok(Side::Parent { status, was_asked })
        }
    }
}
