//! A jail in the background: the command ends once the guest's kvmprof has been executed in it, and the process that waits for that goes on
//! without a terminal.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;

use kvmprof_tools::command_line::ExitStatus;
use rustix::process::{Pid, WaitOptions, waitpid};

/// What a process in the background says when it is on its own.
const STARTED: u8 = 1;

/// Which of the two processes this one is.
#[derive(Debug)]
pub enum Side {
    /// The one that the command was; the other is this process, with its jail, or has said what is wrong and ended with that status.
    Foreground(Result<Pid, ExitStatus>),
    /// The new one.
    Background(Background),
}

/// A process that is to be in the background.
#[derive(Debug)]
pub struct Background {
    nothing: File,
    say: PipeWriter,
}

/// Forks. The new process has a session of its own; the other one waits until it [is on its own](Background::started) or has ended.
///
/// # Errors
/// The host gives no process.
///
/// # Safety
/// This process has no other thread: one might hold a lock that nobody releases in the new one.
pub unsafe fn begin() -> io::Result<Side> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let (hear, say) = pipe()?;
    // SAFETY: by this function's own condition.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::setsid()?;
            Ok(Side::Background(Background { nothing, say }))
        }
        child => {
            drop(say);
            let child = Pid::from_raw(child).ok_or(io::ErrorKind::Other)?;
            wait(child, hear).map(Side::Foreground)
        }
    }
}

fn wait(child: Pid, mut hear: PipeReader) -> io::Result<Result<Pid, ExitStatus>> {
    let mut said = [0];
    // Nothing, if it has ended before.
    if hear.read(&mut said)? == 1 && said == [STARTED] {
        return Ok(Ok(child));
    }
    let end = waitpid(Some(child), WaitOptions::empty())?;
    let status = end.and_then(|(_, status)| status.exit_status());
    let status = status.and_then(|status| u8::try_from(status).ok());
    Ok(Err(
        status.map_or(ExitStatus::FAILURE, ExitStatus::of_command)
    ))
}

impl Background {
    /// Standard input and output lead nowhere from now on, nor does standard error if it is a terminal.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn leave_terminal(&self) -> io::Result<()> {
        let keeps_errors = !io::stderr().is_terminal();
        for number in 0..=2 {
            if number == 2 && keeps_errors {
                continue;
            }
            // SAFETY: it takes numbers. What has been the standard stream is nobody's who needs it any more.
            if unsafe { libc::dup2(self.nothing.as_raw_fd(), number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Leaves the terminal, and has the other process end well in any case.
    ///
    /// # Errors
    /// What [`leave_terminal`](Self::leave_terminal) says.
    pub fn started(mut self) -> io::Result<()> {
        let left = self.leave_terminal();
        // Who is gone needn't know.
        let _ = self.say.write_all(&[STARTED]);
        left
    }
}
