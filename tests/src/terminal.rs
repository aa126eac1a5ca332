//! A terminal for a program under test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// How often it is looked whether the program still runs.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Its type, for the variable `TERM`: without one, programs take it for a terminal that can do nothing, and show nothing.
pub const TERMINAL_TYPE: &str = "xterm-256color";

/// A pseudo-terminal, and what was shown on it.
#[derive(Debug)]
pub struct Terminal {
    controller: File,
    terminal: OwnedFd,
    shown: Vec<u8>,
}

impl Terminal {
    /// One of so many columns and rows.
    ///
    /// # Panics
    /// When there is none to be had.
    pub fn open(columns: u16, rows: u16) -> Self {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(&name, flags, Mode::empty()).unwrap();
        let terminal = Self {
            controller: File::from(controller),
            terminal,
            shown: Vec::new(),
        };
        terminal.resize(columns, rows);
        terminal
    }

    /// The program's side of it.
    ///
    /// # Panics
    /// When there are too many open files.
    pub fn stdio(&self) -> Stdio {
        Stdio::from(self.terminal.try_clone().unwrap())
    }

    /// Changes its size.
    ///
    /// # Panics
    /// When that fails.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.terminal, size).unwrap();
    }

    /// Types `keys`.
    ///
    /// # Panics
    /// When that fails.
    pub fn press(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    /// True while keys go to the program one by one, and aren't shown.
    ///
    /// # Panics
    /// When that can't be told.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    /// All that was shown and read so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// Reads what was shown meanwhile: a program that shows much waits for a terminal that nobody reads.
    ///
    /// # Panics
    /// When it can't be read.
    pub fn catch_up(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            let mut readable = [PollFd::new(&self.controller, PollFlags::IN)];
            if poll(&mut readable, Some(&Timespec::default())).unwrap() == 0 {
                return;
            }
            let count = self.controller.read(&mut bytes).unwrap();
            self.shown.extend(&bytes[..count]);
        }
    }

    /// Reads on until `child` has shown `word`. What doesn't change isn't drawn again.
    ///
    /// # Panics
    /// When `child` ends without.
    pub fn until_shown(&mut self, word: &str, child: &mut Child) {
        let from = self.shown.len();
        let mut bytes = [0; 4096];
        let mut has_ended = false;
        while !String::from_utf8_lossy(&self.shown[from..]).contains(word) {
            let mut readable = [PollFd::new(&self.controller, PollFlags::IN)];
            let some = poll(&mut readable, Some(&PAUSE)).unwrap();
            if some > 0 {
                let count = self.controller.read(&mut bytes).unwrap();
                self.shown.extend(&bytes[..count]);
                continue;
            }
            assert!(
                !has_ended,
                "it ended without {word:?}: {:?}",
                String::from_utf8_lossy(&self.shown)
            );
            // What it wrote last may have come just now.
            has_ended = child.try_wait().unwrap().is_some();
        }
    }
}
