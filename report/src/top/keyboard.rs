//! The keyboard of a terminal that may disappear.

use std::fs::File;
use std::io::{self, IsTerminal, stdin};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The source of keys, the same as crossterm's: standard input, or the process's terminal if standard input isn't one.
pub struct Keyboard {
    terminal: Option<File>,
}

impl Keyboard {
    /// Opens the source of keys.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn open() -> io::Result<Self> {
        let terminal = if stdin().is_terminal() {
            None
        } else {
            Some(File::open("/dev/tty")?)
        };
        Ok(Self { terminal })
    }

    /// Waits for a key, a signal, or `time`. False if the terminal has disappeared: crossterm would read from it in an
    /// endless loop.
    ///
    /// # Errors
    /// poll(2) failed.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        match &self.terminal {
            Some(terminal) => wait_for(terminal.as_fd(), time),
            None => wait_for(stdin().as_fd(), time),
        }
    }
}

fn wait_for(terminal: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(terminal, PollFlags::IN)];
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&time)) {
        Ok(_) => {
            let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            Ok(!polled[0].revents().intersects(gone))
        }
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_terminal_differs_from_an_open_one() {
        let (ours, theirs) = io::pipe().unwrap();
        assert!(wait_for(ours.as_fd(), Duration::ZERO).unwrap());
        io::Write::write_all(&mut &theirs, b"q").unwrap();
        assert!(wait_for(ours.as_fd(), Duration::from_secs(3600)).unwrap());
        drop(theirs);
        assert!(!wait_for(ours.as_fd(), Duration::from_secs(3600)).unwrap());
    }
}
