//! Runs a part of a command in a separate process, because a process that runs a guest stays in the sandbox, and can't
//! write other files or start programs afterwards.

use std::io;

use kvmprof_cli::command_line::ExitStatus;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::child::{BlockedSignals, End, PassOn};

/// The two processes after the fork.
pub enum Side {
    /// The new process.
    Child,
    /// The original process, after the new one has ended.
    Parent {
        /// The new process's status.
        status: ExitStatus,
        /// Whether a signal that requests the end has come.
        was_asked: bool,
    },
}

/// Forks. The parent waits until the child has ended, and passes on the signals that request the end. The child gets
/// SIGTERM if the parent ends first.
///
/// # Errors
/// The host can't create a process, or this process has several threads: the child would have only the calling thread,
/// and locks that other threads hold would stay locked.
pub fn separate() -> io::Result<Side> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        let why = "this process has several threads already";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    let signals = BlockedSignals::block()?;
    let parent = getpid();
    // SAFETY: this is the only thread, so the child can do whatever this process could.
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
                // The status as in shells.
                End::Killed(signal) => signal.saturating_add(128),
            });
            Ok(Side::Parent { status, was_asked })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_fork() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv().is_err());
        let Err(error) = separate() else {
            panic!("it has forked");
        };
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(end);
        assert!(other.join().unwrap());
    }
}
