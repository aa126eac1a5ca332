//! A jail in the background. The command ends after the guest's kvmprof was executed in the jail, and the process that
//! waits for it continues without a terminal.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;

use kvmprof_cli::command_line::ExitStatus;
use rustix::process::{Pid, WaitOptions, waitpid};

/// The message of a background process that has left its terminal.
const STARTED: u8 = 1;

/// The two processes after the fork.
#[derive(Debug)]
pub enum Side {
    /// The command's process. The result is the pid of the background process, which has its jail, or the status with
    /// which it has ended after an error.
    Foreground(Result<Pid, ExitStatus>),
    /// The new process.
    Background(Background),
}

/// The new process's side.
#[derive(Debug)]
pub struct Background {
    nothing: File,
    say: PipeWriter,
}

/// Forks. The new process has a session of its own. The other process waits until the new one [has
/// started](Background::started) or has ended.
///
/// # Errors
/// The host can't create a process.
///
/// # Safety
/// This process must have no other thread, because that thread might hold a lock that nobody releases in the new process.
pub unsafe fn begin() -> io::Result<Side> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let (hear, say) = pipe()?;
    // SAFETY: the caller keeps this function's condition.
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
    // Nothing is read if the process has ended before.
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
    /// Redirects standard input and output to /dev/null, and also standard error if it is a terminal.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn leave_terminal(&self) -> io::Result<()> {
        let keeps_errors = !io::stderr().is_terminal();
        for number in 0..=2 {
            if number == 2 && keeps_errors {
                continue;
            }
            // SAFETY: the call takes numbers. Nobody needs the previous standard stream any more.
            if unsafe { libc::dup2(self.nothing.as_raw_fd(), number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Leaves the terminal, and lets the other process end successfully in any case.
    ///
    /// # Errors
    /// As of [`leave_terminal`](Self::leave_terminal).
    pub fn started(mut self) -> io::Result<()> {
        let left = self.leave_terminal();
        // This fails only if the other process is gone.
        let _ = self.say.write_all(&[STARTED]);
        left
    }
}
