//! The keyboard of a terminal that may disappear.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

/// The source of keys, the same as crossterm's: standard input, or the process's terminal if standard input isn't one.
pub struct Keyboard {
    terminal: Option<File>,
}

/// The state of a keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Nothing was pressed.
    None,
    /// There is input to read.
    Waiting,
    /// The terminal has disappeared: crossterm would read from it in an endless loop.
    Gone,
}

impl Keyboard {
    /// Opens the source of keys.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn open() -> io::Result<Self> {
        let terminal = if io::stdin().is_terminal() {
            None
        } else {
            Some(File::open("/dev/tty")?)
        };
        Ok(Self { terminal })
    }

    /// Waits for a key, a signal, or `time`.
    ///
    /// # Errors
    /// poll(2) failed.
    pub fn wait(&self, time: Duration) -> io::Result<Keys> {
        wait_for(self.terminal(), time)
    }

    /// Has the kernel tell once more that there is input: setting the terminal's attributes, which stay as they are, wakes up all that wait for
    /// it (`n_tty_set_termios`, `drivers/tty/n_tty.c`).
    ///
    /// # Errors
    /// The terminal has disappeared.
    pub fn rouse(&self) -> io::Result<()> {
        let terminal = self.terminal();
        let attributes = tcgetattr(terminal)?;
        Ok(tcsetattr(terminal, OptionalActions::Now, &attributes)?)
    }

    fn terminal(&self) -> BorrowedFd<'_> {
        match &self.terminal {
            Some(terminal) => terminal.as_fd(),
            None => rustix::stdio::stdin(),
        }
    }
}

fn wait_for(terminal: BorrowedFd<'_>, time: Duration) -> io::Result<Keys> {
    let mut polled = [PollFd::from_borrowed_fd(terminal, PollFlags::IN)];
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&time)) {
        Ok(_) => {
            let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            let found = polled[0].revents();
            Ok(match found.contains(PollFlags::IN) {
                _ if found.intersects(gone) => Keys::Gone,
                true => Keys::Waiting,
                false => Keys::None,
            })
        }
        Err(Errno::INTR) => Ok(Keys::None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_terminal_differs_from_an_open_one() {
        let (ours, theirs) = io::pipe().unwrap();
        let wait = |time| wait_for(ours.as_fd(), time).unwrap();
        assert_eq!(wait(Duration::ZERO), Keys::None);
        io::Write::write_all(&mut &theirs, b"q").unwrap();
        assert_eq!(wait(Duration::from_secs(3600)), Keys::Waiting);
        drop(theirs);
        assert_eq!(wait(Duration::from_secs(3600)), Keys::Gone);
    }
}
